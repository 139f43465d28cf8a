# shellcheck shell=bash
# Sourced by the scripts beside it.

# step COMMAND...: runs it and says how long it took.
step() {
  local started=$SECONDS
  "$@"
  echo "${0##*/}: $*: $((SECONDS - started)) s"
}

# apt_install COMMAND PACKAGE...: has the packages where there is no such command.
apt_install() {
  ! command -v "$1" >/dev/null || return 0
  quietly apt-get update
  DEBIAN_FRONTEND=noninteractive quietly apt-get install --yes --no-install-recommends "${@:2}"
}

# quietly COMMAND...: what it prints is shown only where it fails.
quietly() {
  local output
  output=$("$@" 2>&1) || { echo "$output" >&2; return 1; }
}
