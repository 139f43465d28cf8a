# shellcheck shell=bash
# Shared functions of the scripts in this folder.

# step COMMAND...: runs the command and prints its duration.
step() {
  local started=$SECONDS
  "$@"
  echo "${0##*/}: $*: $((SECONDS - started)) s"
}

# apt_install COMMAND PACKAGE...: installs the packages if the command is missing.
apt_install() {
  ! command -v "$1" >/dev/null || return 0
  quietly apt-get update
  DEBIAN_FRONTEND=noninteractive quietly apt-get install --yes --no-install-recommends "${@:2}"
}

# quietly COMMAND...: shows the command's output only if it fails.
quietly() {
  local output
  output=$("$@" 2>&1) || { echo "$output" >&2; return 1; }
}
