mount -t proc -o nosuid,nodev,noexec proc /proc
"$@"
