#!/usr/bin/env bash
# Three files in, one question, and a check that ledger, blobs and index agree. Leaves nothing behind.
set -euo pipefail

penstock="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/.venv/bin/penstock"
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
export PENSTOCK_HOME="$folder/home"
mkdir "$folder/files"

cat > "$folder/files/penstock.md" <<'TEXT'
# Penstock

A penstock is the gated pipe between a reservoir and a turbine. The gate decides how much water the turbine gets.
TEXT
cat > "$folder/files/reservoir.md" <<'TEXT'
# Reservoir

A reservoir keeps the water of the wet months for the dry ones. Its dam is inspected every spring.
TEXT
cat > "$folder/files/turbine.txt" <<'TEXT'
The turbine turns falling water into electricity. It runs at 375 revolutions a minute and is stopped for repair in August.
TEXT

show() {
  echo
  echo "\$ penstock $*"
  "$penstock" "$@"
}

cd "$folder"
show ingest files
show search "when is the dam looked at?" -k 2
show check
