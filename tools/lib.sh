# shellcheck shell=bash
# What tools/check-dars and tools/check-deploy have in common. Sourced in the repository's root; it makes $scratch, a folder that goes when the script ends.

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# A command whose output is of interest only if it fails.
quietly() {
	if ! "$@" >"$scratch/log" 2>&1 </dev/null; then
		cat "$scratch/log" >&2
		return 1
	fi
}

debian_may_install() {
	[ "$(id -u)" = 0 ] && command -v apt-get >/dev/null
}

# Makes $env, a folder in $1 with what the requirements in $2 name: programs in its bin. Without venv it has no Python of its own, and is a PYTHONPATH.
# On Debian as root what is missing of Python is installed. There is one folder per Python and requirements, and its mark is written last, so
# that one half made is made anew.
python_env() {
	local key
	if ! python3 -c 'import ensurepip, venv' 2>/dev/null && debian_may_install; then
		echo "no Python that can make environments here: installing Debian's" >&2
		export DEBIAN_FRONTEND=noninteractive
		quietly apt-get update -qq
		quietly apt-get install -y -qq --no-install-recommends python3 python3-venv
	fi
	if ! command -v python3 >/dev/null; then
		echo "$0 needs Python 3 in PATH" >&2
		return 1
	fi
	key=$({ python3 -c 'import sys; print(sys.version)' && cat "$2"; } | sha256sum | cut -c1-16)
	env=$1/$key
	if [ -e "$env/.made" ]; then return; fi
	echo "installing what $2 names into $env" >&2
	rm -rf "$env"
	mkdir -p "$1"
	if python3 -m venv "$env" >"$scratch/venv" 2>&1; then
		quietly "$env/bin/pip" install --quiet --disable-pip-version-check --requirement "$2"
	elif python3 -m pip --version >/dev/null 2>&1; then
		rm -rf "$env"
		quietly python3 -m pip install --quiet --disable-pip-version-check --target "$env" --requirement "$2"
	else
		cat "$scratch/venv" >&2
		echo "this Python has neither venv nor pip: install them (Debian: python3-venv)" >&2
		return 1
	fi
	touch "$env/.made"
}
