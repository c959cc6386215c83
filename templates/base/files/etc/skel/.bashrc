# Read by interactive shells, after /etc/bash.bashrc.
