#!/usr/bin/env bash
# examples/sites.sh, by the name that it had.
exec bash "$(dirname "${BASH_SOURCE[0]}")/../examples/sites.sh" "$@"
