#!/usr/bin/env bash
# Make the project's virtual environment, .venv, from requirements/*.txt, whose files pip checks by their hashes; one that
# is up to date is used again.
#
#   bash scripts/setup.sh [--dev] [--cuda]
#
#   --dev    what the tests need, too
#   --cuda   torch's CUDA build (several GB); else a new environment gets the CPU build where one is offered, and an
#            old one keeps its own
#
# Exit status: 0 ready; 2 something is missing that the message names; 1 pip failed.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$root/.venv
marker=$venv/.made-by-setup # the environment is ours, not the user's: an incomplete one can be made anew
build_file=$venv/.torch-build
torch=$(sed -n 's/^torch==//p' "$root/constraints.txt")

fail() {
    echo "setup: $2" >&2
    exit "$1"
}

is_python() {
    command -v "$1" >/dev/null && "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null
}

find_python() {
    local candidate
    for candidate in python3.11 /usr/bin/python3.11 python3.12 python3.13 python3; do # with DGL first
        if is_python "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    fail 2 "needs Python 3.11, 3.12 or 3.13; for 3.11 there is DGL, too. Install one (Debian, Ubuntu: apt install python3.11
       python3.11-venv; else: uv python install 3.11, or pyenv install 3.11) so that it is on the PATH"
}

# What has to stay the same for an environment to be used again.
fingerprint() {
    { echo "$root $1 $2" && cat "$root"/requirements/*.txt "$root/pyproject.toml"; } | sha256sum | cut -d ' ' -f 1
}

is_ready() {
    [[ -x $venv/bin/python && -f $venv/.ready-$1 && $(<"$venv/.ready-$1") == "$(fingerprint "$1" "$2")" ]]
}

make_environment() {
    local python
    if [[ -f $marker ]] && ! compgen -G "$venv/.ready-*" >/dev/null; then
        rm -rf "$venv" # ours, and never completed
    fi
    if [[ ! -d $venv ]]; then
        python=$(find_python)
        mkdir "$venv"
        touch "$marker"
        "$python" -m venv "$venv" || fail 2 "$python cannot make a virtual environment; on Debian and Ubuntu: apt install python3.11-venv"
    fi
    is_python "$venv/bin/python" || fail 2 "$venv is not an environment of Python 3.11 to 3.13; remove it"
    "$venv/bin/python" -m pip --version >/dev/null 2>&1 || fail 2 "$venv has no pip; remove it"
}

pip_() {
    "$venv/bin/python" -m pip --disable-pip-version-check "$@"
}

# pip_index_has VERSION [OPTION ...]: whether an index or folder of wheels that pip is set up with has this torch.
pip_index_has() {
    local version=$1 listed
    shift
    listed=$(pip_ index versions torch --retries 0 --timeout 10 "$@" 2>/dev/null | sed -n 's/^Available versions: //p') || return 1
    [[ ", $listed," == *", $version,"* ]]
}

install_torch() {
    local cpu_index=https://download.pytorch.org/whl/cpu
    # --no-deps: nothing but torch itself is taken from the additional index.
    local command=(install -qq --no-deps)
    if [[ $build == cuda ]]; then
        echo "setup: torch $torch, CUDA build: it and NVIDIA's libraries are a download of several GB"
        command+=(--require-hashes --requirement "$root/requirements/torch.txt")
    elif pip_index_has "$torch+cpu"; then
        echo "setup: torch $torch, CPU build: about 200 MB"
        command+=("torch==$torch+cpu")
    elif pip_index_has "$torch+cpu" --extra-index-url "$cpu_index"; then
        echo "setup: torch $torch, CPU build from $cpu_index: about 200 MB"
        command+=("torch==$torch+cpu" --extra-index-url "$cpu_index")
    else
        echo "setup: torch $torch: no CPU build is offered here, so the index's own: on Linux the CUDA build, several GB."
        echo "setup: to avoid that, stop now and point pip at a CPU build (PIP_FIND_LINKS or PIP_EXTRA_INDEX_URL)"
        command+=(--require-hashes --requirement "$root/requirements/torch.txt")
    fi
    pip_ "${command[@]}" || fail 1 "pip failed; the same command tries again"
}

has_torch() {
    local version
    version=$("$venv/bin/python" -c 'from importlib.metadata import version; print(version("torch"))' 2>/dev/null) || return 1
    case $build in
    cpu) [[ $version == "$torch+cpu" || $version == "$torch" ]] ;;
    cuda) [[ $version == "$torch" || $version == "$torch+cu"* ]] ;;
    esac
}

# pip_locked NAME: the packages of requirements/NAME.txt; those without a wheel are built by the setuptools of build.txt.
pip_locked() {
    pip_ install -qq --no-deps --no-build-isolation --require-hashes --requirement "$root/requirements/$1.txt"
}

install() {
    rm -f "$venv"/.ready-*
    has_torch || install_torch
    echo "setup: the other packages, about 200 MB (with --dev 250 MB), into $venv (about a minute)"
    pip_locked build && pip_locked "$kind" &&
        pip_ install -qq --no-deps --no-build-isolation --editable "$root" || fail 1 "pip failed; the same command tries again"
    echo "$build" >"$build_file"
    if [[ $kind == dev ]]; then fingerprint demo "$build" >"$venv/.ready-demo"; fi
    fingerprint "$kind" "$build" >"$venv/.ready-$kind"
}

kind=demo
build=
for argument in "$@"; do
    case $argument in
    --dev) kind=dev ;;
    --cuda) build=cuda ;;
    *) fail 2 "$argument: no such option; there are --dev and --cuda" ;;
    esac
done

exec 9<"$root"
if command -v flock >/dev/null; then flock 9; fi # one set-up at a time
if [[ -z $build ]]; then build=$(cat "$build_file" 2>/dev/null || echo cpu); fi
if ! is_ready "$kind" "$build"; then
    make_environment
    install
fi
