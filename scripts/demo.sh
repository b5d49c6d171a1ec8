#!/usr/bin/env bash
# A fleet of three nodes on this machine, of which one is killed: `demo.sh start`, `demo.sh stop`.
#
# KVDB_DEMO_DIR        where data, logs and process ids go (.demo)
# KVDB_DEMO_HTTP_PORT  port of node 1's HTTP; nodes 2 and 3 take the next two (7101)
# KVDB_DEMO_PEER_PORT  port of node 1 for peers; likewise (7201)
set -euo pipefail
cd "$(dirname "$0")/.."

readonly DIR="${KVDB_DEMO_DIR:-$PWD/.demo}"
readonly HTTP_PORT="${KVDB_DEMO_HTTP_PORT:-7101}"
readonly PEER_PORT="${KVDB_DEMO_PEER_PORT:-7201}"
readonly DATABASE=debian
readonly NODES="1 2 3"
readonly READY_SECONDS=60 EQUAL_SECONDS=90
# Quicker than the defaults, so that nobody waits long for a death to be believed.
readonly TIMES=(--fleet-beat-ms 300 --fleet-suspect-ms 1500 --fleet-dead-ms 3000 --fleet-settle-ms 2000 --fleet-quiet-ms 3000)
# What one writer writes in a round: each batch is one `kvdb import`, and a tenth of the keys are the same on all nodes.
readonly BATCHES=20 BATCH_KEYS=100
# Settings of the user's own node are not meant for these.
for name in "${!KVDB_@}"; do
  case "$name" in KVDB_DEMO_*) ;; *) unset "$name" ;; esac
done
KVDB="$(scripts/cargo target-dir)/release/kvdb"
readonly KVDB
# When writers give up.
readonly WRITE_END=$((SECONDS + 600))

say() { printf '\n== %s\n' "$*"; }
note() { printf '   %s\n' "$*"; }
die() { printf '\ndemo: %s\n' "$*" >&2; exit 1; }

http_port() { echo $((HTTP_PORT + $1 - 1)); }
peer_port() { echo $((PEER_PORT + $1 - 1)); }
kvdb_at() { KVDB_SERVER="http://127.0.0.1:$(http_port "$1")" KVDB_DB="$DATABASE" "$KVDB" "${@:2}"; }

# --- processes --------------------------------------------------------------------------------------------------------

# The process of a node, if it runs. The number in the file may belong to another program by now.
pid_of() {
  local pid
  pid=$(cat "$DIR/node-$1.pid" 2>/dev/null) || return 1
  case "$(tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline" || ps -p "$pid" -o args= 2>/dev/null)" in
    *"$DIR/node-$1"*) echo "$pid" ;;
    *) return 1 ;;
  esac
}

id_of() { cat "$DIR/node-$1.id"; }

# The node with this identity.
node_of() {
  local node
  for node in $NODES; do
    if [ "$(id_of "$node")" = "$1" ]; then echo "$node"; fi
  done
}

# Identities first: every member must know all.
init_nodes() {
  local node
  for node in $NODES; do
    "$KVDB" init --data-dir "$DIR/node-$node" | sed -n 's/^peer //p' >"$DIR/node-$node.id"
  done
}

start_node() {
  local node=$1 other others=() members=()
  for other in $NODES; do
    [ "$other" = "$node" ] || others+=("/ip4/127.0.0.1/tcp/$(peer_port "$other")")
    members+=("$(id_of "$other")")
  done
  nohup "$KVDB" run --data-dir "$DIR/node-$node" --databases '' \
    --fleet-members "$(IFS=,; echo "${members[*]}")" "${TIMES[@]}" \
    --http-listen "127.0.0.1:$(http_port "$node")" --p2p-listen "/ip4/127.0.0.1/tcp/$(peer_port "$node")" \
    --p2p-bootstrap "$(IFS=,; echo "${others[*]}")" </dev/null >>"$DIR/node-$node.log" 2>&1 &
  echo $! >"$DIR/node-$node.pid"
  disown
}

wait_ready() {
  local node=$1 end=$((SECONDS + READY_SECONDS))
  until http_get "$node" /readyz | head -n 1 | grep -q ' 200 '; do
    pid_of "$node" >/dev/null || die "node $node has ended; the reason is at the end of $DIR/node-$node.log"
    [ "$SECONDS" -lt "$end" ] || die "node $node is not ready after $READY_SECONDS s; see $DIR/node-$node.log"
    sleep 0.1
  done
}

stop_nodes() {
  local node pid
  for node in $NODES; do
    if pid=$(pid_of "$node"); then kill -TERM "$pid" || true; fi
  done
  for node in $NODES; do
    for _ in {1..100}; do
      pid_of "$node" >/dev/null || break
      sleep 0.1
    done
    if pid=$(pid_of "$node"); then
      note "node $node did not stop within 10 s and is killed"
      kill -KILL "$pid" || true
    fi
    rm -f "$DIR/node-$node.pid"
  done
}

# --- what the nodes hold ----------------------------------------------------------------------------------------------

# HTTP by bash alone, since a fresh machine need not have curl.
http_get() {
  local port
  port=$(http_port "$1")
  (
    exec 9<>"/dev/tcp/127.0.0.1/$port"
    printf 'GET %s HTTP/1.0\r\nHost: 127.0.0.1:%s\r\n\r\n' "$2" "$port" >&9
    cat <&9
  ) 2>/dev/null || true
}

port_is_taken() { (exec 9<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# The nodes that serve the database, by the view of the given one.
holders() {
  local id ids
  ids=$(kvdb_at "$1" placement "$DATABASE" 2>/dev/null | sed -n 's/^  ready //p' | tr ',' ' ')
  for id in $ids; do node_of "$id"; done | xargs
}

# Waits until so many nodes serve the database, without the given one.
wait_holders() {
  local from=$1 count=$2 without=$3 found end=$((SECONDS + EQUAL_SECONDS))
  while :; do
    found=$(holders "$from")
    case " $found " in *" $without "*) ;; *)
      if [ "$(wc -w <<<"$found")" -ge "$count" ]; then
        note "served by nodes $found"
        return
      fi ;;
    esac
    [ "$SECONDS" -lt "$end" ] || die "$count holders without node $without were not ready after $EQUAL_SECONDS s: $found"
    sleep 0.2
  done
}

# A node's "keys digest", of what it holds itself.
state_of() {
  local body
  body=$(http_get "$1" "/v1/databases" | tr -d ' \r\n')
  [[ $body =~ \"keys\":([0-9]+) ]] || return 1
  local keys=${BASH_REMATCH[1]}
  [[ $body =~ \"digest\":\"([0-9a-f]+)\" ]] || return 1
  echo "$keys ${BASH_REMATCH[1]}"
}

# Waits until the given nodes have the same number of keys, the expected one, and the same digest.
wait_equal() {
  local expected=$1 node state states row last_row='' end=$((SECONDS + EQUAL_SECONDS))
  shift
  while :; do
    states='' row=''
    for node in "$@"; do
      state=$(state_of "$node") || state='- -'
      states+="$state"$'\n'
      row+=$(printf 'node %s: %6s keys %.8s   ' "$node" "${state% *}" "${state#* }")
    done
    if [ "$row" != "$last_row" ]; then note "$row"; fi
    last_row=$row
    if [ "$(sort -u <<<"${states%$'\n'}")" = "$expected ${state#* }" ]; then
      note "equal: $expected keys, digest ${state#* }"
      return
    fi
    [ "$SECONDS" -lt "$end" ] || die "nodes $* are not equal, with $expected keys, after $EQUAL_SECONDS s"
    sleep 0.2
  done
}

# --- writers ----------------------------------------------------------------------------------------------------------

batch() {
  awk -v round="$1" -v node="$2" -v batch="$3" -v keys="$BATCH_KEYS" 'BEGIN {
    for (i = 0; i < keys; i++) {
      name = i % 10 ? "node-" node : "all"
      printf "{\"key\":\"/demo/round-%d/%s/%02d-%03d\",\"encoding\":\"utf8\",\"value\":\"node %d\"}\n", round, name, batch, i, node
    }
    printf "{\"end\":{\"count\":%d}}\n", keys
  }'
}

keys_of_round() { echo $((BATCHES * BATCH_KEYS * (9 * $(wc -w <<<"$NODES") + 1) / 10)); }

# Writes the batches that are left of a round, and notes how many the node has confirmed.
write_round() {
  local round=$1 node=$2 done_file="$DIR/round-$1-node-$2" from
  from=$(cat "$done_file" 2>/dev/null || echo 0)
  for ((n = from; n < BATCHES; n++)); do
    # What was not confirmed in time is put again: the same keys with the same values.
    until batch "$round" "$node" "$n" | kvdb_at "$node" import >>"$DIR/writers.log" 2>&1; do
      pid_of "$node" >/dev/null || return 1
      [ "$SECONDS" -lt "$WRITE_END" ] || return 1
    done
    echo $((n + 1)) >"$done_file.new"
    mv "$done_file.new" "$done_file"
  done
}

batches_done() { cat "$DIR/round-$1-node-$2" 2>/dev/null || echo 0; }

# --- the demonstration ------------------------------------------------------------------------------------------------

prepare() {
  local node port
  for node in $NODES; do
    if pid_of "$node" >/dev/null; then
      die "a demonstration is running already (node $node, $DIR); stop it with: make demo-stop"
    fi
    for port in "$(http_port "$node")" "$(peer_port "$node")"; do
      if port_is_taken "$port"; then
        die "port $port is in use by another program; choose others with KVDB_DEMO_HTTP_PORT and KVDB_DEMO_PEER_PORT"
      fi
    done
  done
  # Only what an earlier demonstration made is removed.
  if [ -d "$DIR" ] && [ ! -e "$DIR/made-by-kvdb-demo" ] && [ -n "$(ls -A "$DIR")" ]; then
    die "$DIR is not empty and not from an earlier demonstration; choose another with KVDB_DEMO_DIR"
  fi
  rm -rf "$DIR"
  mkdir -p "$DIR" || die "cannot create $DIR; choose another with KVDB_DEMO_DIR"
  : >"$DIR/made-by-kvdb-demo"
}

import_data() {
  local keys started elapsed_ms
  scripts/demo-data.sh >"$DIR/data.ndjson"
  keys=$(($(wc -l <"$DIR/data.ndjson") - 1))
  note "$keys keys, for instance $(sed -n '1s/^{"key":"\([^"]*\)".*/\1/p' "$DIR/data.ndjson")"
  started=$(date +%s%N)
  kvdb_at 1 import --progress <"$DIR/data.ndjson"
  elapsed_ms=$((($(date +%s%N) - started) / 1000000 + 1))
  note "imported into node 1 in $elapsed_ms ms, $((keys * 1000 / elapsed_ms)) keys/s"
  KEYS=$keys
}

create_database() {
  local end=$((SECONDS + READY_SECONDS))
  # A fleet begins once all its members are there.
  until kvdb_at 1 database create "$DATABASE" --holders 2 >"$DIR/create.log" 2>&1; do
    [ "$SECONDS" -lt "$end" ] || die "the database cannot be made: $(cat "$DIR/create.log")"
    sleep 0.2
  done
  note "$(cat "$DIR/create.log")"
}

put_one() {
  local said
  said=$(kvdb_at 3 put /greetings/hello 'Hello, fleet' --require 2) || die 'the put was not confirmed'
  note "kvdb put /greetings/hello 'Hello, fleet' --require 2   at node 3 says:"
  note "$said"
}

kill_a_holder_during_writes() {
  local node writers=() nodes=()
  VICTIM=$(holders 1 | cut -d' ' -f1)
  for node in $NODES; do
    write_round 1 "$node" &
    writers+=($!) nodes+=("$node")
  done
  until [ "$(batches_done 1 "$VICTIM")" -ge 3 ]; do
    kill -0 "${writers[VICTIM - 1]}" 2>/dev/null || die "the writer at node $VICTIM has ended too early; see $DIR/writers.log"
    sleep 0.01
  done
  kill -KILL "$(pid_of "$VICTIM")"
  note "node $VICTIM, a holder, killed after $(($(batches_done 1 "$VICTIM") * BATCH_KEYS)) keys through it were confirmed; the others go on"
  for node in "${!writers[@]}"; do
    if wait "${writers[node]}"; then
      note "node ${nodes[node]}: all $((BATCHES * BATCH_KEYS)) keys confirmed by two holders"
    elif [ "${nodes[node]}" != "$VICTIM" ]; then
      die "the writer at node ${nodes[node]} has failed; see $DIR/writers.log"
    fi
  done
}

on_exit() {
  local code=$?
  [ "$code" -ne 0 ] || return 0
  # Before the nodes are started there is nothing to tidy up, and another demonstration must not be stopped.
  if [ "${STARTED:-no}" = yes ]; then
    for node in $NODES; do
      printf '\n-- last lines of %s\n' "$DIR/node-$node.log" >&2
      tail -n 5 "$DIR/node-$node.log" >&2 || true
    done
    stop_nodes
    printf '\ndemo: FAILED; the nodes are stopped, data and logs are in %s\n' "$DIR" >&2
  fi
}

start() {
  local node
  prepare
  say 'Building kvdb'
  scripts/cargo build --release --workspace --locked --bin kvdb

  trap on_exit EXIT
  trap 'exit 130' INT TERM
  STARTED=yes
  say 'Starting a fleet of three nodes'
  init_nodes
  for node in $NODES; do start_node "$node"; done
  for node in $NODES; do
    wait_ready "$node"
    note "node $node: http://127.0.0.1:$(http_port "$node"), data in $DIR/node-$node, $(id_of "$node")"
  done

  say 'Making a database that two of the three hold'
  create_database
  wait_holders 1 2 none

  say 'Writing through any node: the answer names the holders that have it on disk'
  put_one

  say 'Importing what is installed on this machine through node 1, each batch confirmed by two holders'
  import_data

  say 'Killing a holder (SIGKILL) while all three nodes write'
  kill_a_holder_during_writes
  local alive=1
  [ "$VICTIM" != 1 ] || alive=2
  say 'The third node takes over once it has everything'
  wait_holders "$alive" 2 "$VICTIM"

  say "Starting node $VICTIM again, and writing the rest through it"
  start_node "$VICTIM"
  wait_ready "$VICTIM"
  write_round 1 "$VICTIM" || die "the writer at node $VICTIM has failed; see $DIR/writers.log"

  say 'Raising the database to three holders: all three nodes end equal'
  local end=$((SECONDS + READY_SECONDS))
  until kvdb_at "$alive" database holders "$DATABASE" 3 >>"$DIR/create.log" 2>&1; do
    [ "$SECONDS" -lt "$end" ] || die "the holders cannot be raised: $(tail -n 1 "$DIR/create.log")"
    sleep 0.2
  done
  # shellcheck disable=SC2086
  wait_equal $((KEYS + 1 + $(keys_of_round))) $NODES

  farewell
}

farewell() {
  cat <<EOF

== Done: a fleet of three nodes is running. To try next:

   alias kvdb='$KVDB'
   export KVDB_SERVER=http://127.0.0.1:$(http_port 1) KVDB_DB=$DATABASE
   kvdb put /greetings/hello 'Hello, world' --require 3
   kvdb get /greetings/hello --server http://127.0.0.1:$(http_port 3)
   kvdb ls /debian/shells
   kvdb members
   kvdb placement $DATABASE
   kvdb claims
   kvdb status
   curl http://127.0.0.1:$(http_port 2)/v1/databases/$DATABASE/keys/greetings/hello

   make demo-stop
EOF
}

stop() {
  local node running=0
  for node in $NODES; do
    if pid_of "$node" >/dev/null; then running=$((running + 1)); fi
  done
  if [ "$running" -eq 0 ]; then
    echo 'demo: nothing is running'
    return
  fi
  stop_nodes
  echo "demo: stopped $running nodes; data and logs stay in $DIR until the next demonstration"
}

case "${1:-}" in
  start) start ;;
  stop) stop ;;
  *) die 'usage: demo.sh start | stop' ;;
esac
