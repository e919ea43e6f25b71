# What the scripts that make OCI images from Debian packages share. Sourced, not run.
#
#   image_begin DIR RECIPE     DIR is where the layout goes; ends the script when it is there already
#   image_rootfs VARIANT PKG[,PKG...] [mmdebstrap option...]   makes $image_work/rootfs.tar
#   image_end                  puts $image_work/oci in DIR's place
#
# RECIPE is a word that changes when the content would: a layout of another recipe is made anew.

image_suite=bookworm
image_arch=
image_work=

image_fail() {
	echo "$(basename "$0"): $*" >&2
	exit 1
}

image_begin() {
	image_dir=$1
	image_recipe=$2
	if [ "$(cat "$image_dir/.recipe" 2>/dev/null)" = "$image_recipe" ]; then
		echo "$image_dir: already there"
		exit 0
	fi
	command -v mmdebstrap >/dev/null || image_fail "mmdebstrap is missing: apt-get install mmdebstrap"
	case $(dpkg --print-architecture) in
	amd64 | arm64 | riscv64 | ppc64le) image_arch=$(dpkg --print-architecture) ;;
	*) image_fail "no OCI name known for the architecture $(dpkg --print-architecture)" ;;
	esac
	mkdir -p "$(dirname "$image_dir")"
	image_work=$(mktemp -d "$image_dir.XXXXXX")
	trap 'rm -rf "$image_work"' EXIT
	trap 'exit 130' INT
	trap 'exit 143' TERM
	mkdir "$image_work/oci"
}

# The mirror that this host uses, where the host runs the same release; else Debian's own.
image_mirror() {
	. /etc/os-release
	if [ "${ID:-}" = debian ] && [ "${VERSION_CODENAME:-}" = "$image_suite" ]; then
		for list in /etc/apt/sources.list.d/debian.sources /etc/apt/sources.list; do
			if grep -qs '^[^#]*deb' "$list"; then
				echo "$list"
				return
			fi
		done
	fi
	echo http://deb.debian.org/debian
}

image_rootfs() {
	variant=$1
	packages=$2
	shift 2
	log=$image_work/log
	# The time stamps of what mmdebstrap itself writes; files of packages keep older ones.
	SOURCE_DATE_EPOCH=1700000000 TMPDIR=${TMPDIR:-/var/tmp} \
		mmdebstrap --variant="$variant" --include="$packages" "$@" \
		"$image_suite" "$image_work/rootfs.tar" "$(image_mirror)" >"$log" 2>&1 || {
		tail -n 15 "$log" | cut -c 1-300 >&2
		image_fail "mmdebstrap failed (its last lines are above): are Debian's packages reachable?" \
			"An ordinary user also needs the package uidmap and a line in /etc/subuid."
	}
}

image_end() {
	rm -f "$image_work/rootfs.tar"
	echo "$image_recipe" >"$image_work/oci/.recipe"
	chmod 755 "$image_work/oci"
	rm -rf "$image_dir"
	mv "$image_work/oci" "$image_dir"
	echo "$image_dir: made"
}
