#!/usr/bin/env bash
# Prints a real data set of path-shaped keys as NDJSON for `kvdb import`: the installed packages of a Debian system, or
# else the names and sizes of the files below /usr/share. A last record counts them. Needs awk only (any awk).
set -euo pipefail
# Bytes, not characters: what is UTF-8 stays as it is.
export LC_ALL=C

readonly STATUS="${KVDB_DEMO_DPKG_STATUS:-/var/lib/dpkg/status}"
readonly MAX_FILES=5000

# One paragraph per package, `Field: value` with continuation lines that start with a space, as in deb-control(5).
packages() {
  awk '
    # The text as the inside of a JSON string. In a replacement "\\\\&" is a backslash and what was matched.
    function escape(text) {
      gsub(/["\\]/, "\\\\&", text)
      gsub(/\t/, "\\t", text)
      gsub(/\n/, "\\n", text)
      gsub(/[\001-\037\177]/, " ", text)
      return text
    }
    function field_done() {
      if (name == "") return
      fields = fields (fields == "" ? "" : ",") "\"" escape(name) "\":\"" escape(value) "\""
      of[name] = value
      name = ""
    }
    function package_done(   section, key) {
      field_done()
      if (of["Package"] != "" && of["Status"] ~ / installed$/) {
        section = of["Section"] == "" ? "unknown" : of["Section"]
        key = "/debian/" section "/" of["Package"] "/" of["Version"]
        # One package installed for two architectures has one key.
        if (!(key in seen)) {
          printf "{\"key\":\"%s\",\"encoding\":\"utf8\",\"value\":\"%s\"}\n", escape(key), escape("{" fields "}")
          count++
        }
        seen[key] = 1
      }
      split("", of)
      fields = ""
    }
    /^$/ { package_done(); next }
    /^[ \t]/ { value = value "\n" substr($0, 2); next }
    {
      field_done()
      colon = index($0, ":")
      name = substr($0, 1, colon - 1)
      value = substr($0, colon + 1)
      sub(/^[ \t]+/, "", value)
    }
    END {
      package_done()
      printf "{\"end\":{\"count\":%d}}\n", count
    }
  ' "$STATUS"
}

# Names outside of printable ASCII, and keys over the limit of 1,024 bytes, are left out.
files() {
  { find /usr/share -type f -exec wc -c {} + 2>/dev/null || true; } | awk -v max="$MAX_FILES" '
    count < max && match($0, /^ *[0-9]+ \//) && !/[^ -~]/ && length($0) < 1000 {
      size = $1
      path = substr($0, RLENGTH)
      gsub(/["\\]/, "\\\\&", path)
      printf "{\"key\":\"/files%s\",\"encoding\":\"utf8\",\"value\":\"%d\"}\n", path, size
      count++
    }
    END { printf "{\"end\":{\"count\":%d}}\n", count }
  '
}

if [ -s "$STATUS" ]; then
  packages
else
  echo 'demo: no Debian package database here; taking the files below /usr/share instead' >&2
  files
fi
