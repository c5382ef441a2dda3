#!/bin/sh
# Install the Debian packages that the tests on real parts need, where that is possible: as root, with apt.
# Never a failure: what is missing in the end is the reason by which pytest skips a tier.
set -u
packages="python3 python3-venv lxc uidmap iproute2 openssh-server openssh-client systemd systemd-sysv dbus libpam-systemd sudo tmux procps util-linux pciutils nftables gcc libc6-dev chromium fonts-dejavu-core zsh fish"

missing=
for package in $packages; do
    dpkg-query --show --showformat '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing="$missing $package"
done
[ -z "$missing" ] && exit 0

if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "not installed, and not ours to install (needs root and apt):$missing" >&2
    exit 0
fi

# Nobody who runs tests wants an SSH server or a container bridge started on their machine.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
fi

echo "installing:$missing"
export DEBIAN_FRONTEND=noninteractive
quiet="-qq -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=120"
# shellcheck disable=SC2086 # words on purpose
{ apt-get $quiet update && apt-get $quiet install --yes --no-install-recommends $missing; } </dev/null >/dev/null ||
    echo "apt-get failed; tests that need these packages are skipped:$missing" >&2
exit 0
