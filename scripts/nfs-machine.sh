#!/bin/sh
# What a machine of `make test-nfs` has beside Debian's packages. Called by mmdebstrap with the folder of its root.
set -eu
root=$2
case $1 in
  before) # a small initrd: the machine's disk and its file system are known
    mkdir -p "$root/etc/initramfs-tools/conf.d"
    echo MODULES=list > "$root/etc/initramfs-tools/conf.d/dsv41"
    printf 'virtio_pci\nvirtio_blk\next4\n' > "$root/etc/initramfs-tools/modules"
    ;;
  after)
    made=$3
    # the wire between the machines, told by its MAC, and the way in for ssh
    for n in 1 2; do
      printf '[Match]\nMACAddress=52:54:00:aa:00:0%s\n[Network]\nAddress=10.77.0.%s/24\n' $n $n \
        > "$root/etc/systemd/network/wire$n.network"
    done
    printf '[Match]\nMACAddress=52:54:00:bb:00:01 52:54:00:bb:00:02\n[Network]\nAddress=10.0.2.15/24\n' \
      > "$root/etc/systemd/network/ssh.network"
    chroot "$root" systemctl -q enable systemd-networkd
    chroot "$root" useradd -m -s /bin/sh spark
    echo 'spark ALL=(ALL) NOPASSWD: ALL' > "$root/etc/sudoers.d/spark"
    echo '/dev/vda / ext4 defaults 0 1' > "$root/etc/fstab"
    echo '127.0.0.1 localhost spark1 spark2' > "$root/etc/hosts" # sudo looks its own name up
    install -d -m 700 -o 1000 -g 1000 "$root/home/spark/.ssh"
    install -m 600 -o 1000 -g 1000 "$made/key.pub" "$root/home/spark/.ssh/authorized_keys"
    cp "$root"/etc/ssh/ssh_host_ed25519_key.pub "$made/host.pub"
    cp "$root"/boot/vmlinuz-* "$made/kernel"
    cp "$root"/boot/initrd.img-* "$made/initrd"
    ;;
esac
