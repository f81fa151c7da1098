#!/usr/bin/env bash
# The former name of examples/sites.sh.
exec bash "$(dirname "${BASH_SOURCE[0]}")/../examples/sites.sh" "$@"
