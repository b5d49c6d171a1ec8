#!/usr/bin/env bash
# Three nodes on this machine that keep one database equal: `demo.sh start`, `demo.sh stop`.
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
readonly READY_SECONDS=30 EQUAL_SECONDS=60
# What one writer writes in a round: each batch is one `kvdb import`, and a tenth of the keys are the same on all nodes.
readonly BATCHES=20 BATCH_KEYS=100
# Settings of the user's own node are not meant for these.
for name in "${!KVDB_@}"; do
  case "$name" in KVDB_DEMO_*) ;; *) unset "$name" ;; esac
done
KVDB="$(scripts/cargo target-dir)/release/kvdb"
readonly KVDB

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

start_node() {
  local node=$1 other others=()
  for other in $NODES; do
    [ "$other" = "$node" ] || others+=("/ip4/127.0.0.1/tcp/$(peer_port "$other")")
  done
  nohup "$KVDB" run --data-dir "$DIR/node-$node" --databases "$DATABASE" \
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

# A node's "keys digest".
state_of() {
  local body
  body=$(http_get "$1" "/v1/databases/$DATABASE" | tr -d ' \r\n')
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
    batch "$round" "$node" "$n" | kvdb_at "$node" import >>"$DIR/writers.log" 2>&1 || return 1
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

write_at_once() {
  local node writers=()
  for node in $NODES; do
    write_round 1 "$node" &
    writers+=($!)
  done
  for pid in "${writers[@]}"; do
    wait "$pid" || die "a writer has failed; see $DIR/writers.log"
  done
}

kill_one_during_writes() {
  local writer1 writer2 writer3
  write_round 2 1 & writer1=$!
  write_round 2 2 & writer2=$!
  write_round 2 3 & writer3=$!
  until [ "$(batches_done 2 2)" -ge 3 ]; do
    kill -0 "$writer2" 2>/dev/null || die "the writer at node 2 has ended too early; see $DIR/writers.log"
    sleep 0.01
  done
  kill -KILL "$(pid_of 2)"
  if wait "$writer2"; then die 'the writer at node 2 was done before the kill'; fi
  note "node 2 killed after it had confirmed $(($(batches_done 2 2) * BATCH_KEYS)) keys; nodes 1 and 3 go on"
  wait "$writer1" || die "the writer at node 1 has failed; see $DIR/writers.log"
  wait "$writer3" || die "the writer at node 3 has failed; see $DIR/writers.log"
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
  say 'Starting three nodes'
  for node in $NODES; do start_node "$node"; done
  for node in $NODES; do
    wait_ready "$node"
    note "node $node: http://127.0.0.1:$(http_port "$node"), peers on port $(peer_port "$node"), data in $DIR/node-$node"
  done

  say 'Importing what is installed on this machine into node 1'
  import_data
  # shellcheck disable=SC2086
  wait_equal "$KEYS" $NODES

  say "Writing on all three at once, $((BATCHES * BATCH_KEYS)) keys each"
  write_at_once
  # shellcheck disable=SC2086
  wait_equal $((KEYS + $(keys_of_round))) $NODES

  say 'Killing node 2 (SIGKILL) while all three write'
  kill_one_during_writes
  say 'Starting node 2 again, and writing the rest through it'
  start_node 2
  wait_ready 2
  write_round 2 2 || die "the writer at node 2 has failed; see $DIR/writers.log"
  # shellcheck disable=SC2086
  wait_equal $((KEYS + 2 * $(keys_of_round))) $NODES

  farewell
}

farewell() {
  cat <<EOF

== Done: three equal nodes are running. To try next:

   alias kvdb='$KVDB'
   export KVDB_SERVER=http://127.0.0.1:$(http_port 1) KVDB_DB=$DATABASE
   kvdb put /greetings/hello 'Hello, world'
   kvdb get /greetings/hello --server http://127.0.0.1:$(http_port 3)
   kvdb ls /debian/shells
   kvdb status
   kvdb peers
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
