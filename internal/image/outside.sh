# Runs the program "$@" with the processes of its own namespace in /proc.
umask 022
mount -t proc -o nosuid,nodev,noexec proc /proc
"$@"
