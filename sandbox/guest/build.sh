#!/bin/sh
# Rebuilds guest.wasm.zst and guest.blake3. Needs python3 with `pip install componentize-py==0.25.1`, zstd and b3sum.
set -eu
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
componentize-py -d sandbox.wit -w python componentize app -p . -o "$work/guest.wasm"
zstd -q -f -19 "$work/guest.wasm" -o guest.wasm.zst
b3sum --no-names "$work/guest.wasm" > guest.blake3
ls -l guest.wasm.zst
