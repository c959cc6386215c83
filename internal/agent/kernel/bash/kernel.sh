# The Bash kernel: the start-up file of an interactive shell, which then reads the
# agent's requests as commands (program.go has its descriptors, bash.go the
# requests). Interactive, so that an interrupt ends the command and not the shell.
# Users' code may have changed options, IFS and functions when one of these runs.

unset HISTFILE MAIL MAILCHECK PROMPT_COMMAND TMOUT
set +o history +o histexpand +o monitor
PS1= PS2=
exec 0<&3 5<&-

__tombolo_count=0                                # of runs
__tombolo_ended=0                                # the last run that has ended
__tombolo_sandbox=" $(compgen -e | tr '\n' ' ')" # names of the sandbox's variables
__tombolo_run=()                                 # names of a run's variables
__tombolo_old=()                                 # code that brings back what they were

__tombolo_send() { builtin printf '%s\n' "$1" >&3; }

# __tombolo_env NAME=VALUE...: the variables of the sandbox are these.
__tombolo_env() {
	builtin local IFS=$' \t\n' entry name names=' '
	for entry in "$@"; do
		builtin export "$entry"
		names+="${entry%%=*} "
	done
	builtin set -f
	for name in $__tombolo_sandbox; do
		[[ $names == *" $name "* ]] || builtin unset -v "$name"
	done
	__tombolo_sandbox=$names
}

# __tombolo_begin NAME=VALUE...: a run begins, with variables of its own.
__tombolo_begin() {
	builtin local entry name
	__tombolo_run=() __tombolo_old=()
	for entry in "$@"; do
		name=${entry%%=*}
		__tombolo_run+=("$name")
		if builtin declare -p "$name" &>/dev/null; then
			__tombolo_old+=("$(builtin declare -p "$name")")
		else
			__tombolo_old+=('')
		fi
		builtin export "$entry"
	done
	__tombolo_count=$((__tombolo_count + 1))
	__tombolo_send "{\"t\":\"count\",\"n\":$__tombolo_count}"
}

# __tombolo_end RUN STATUS: the run has ended. It comes again after an interrupt,
# which may have hit this.
__tombolo_end() {
	builtin local i ack
	[[ $1 -gt $__tombolo_ended ]] || return
	for i in "${!__tombolo_run[@]}"; do
		builtin unset -v "${__tombolo_run[i]}"
		[[ -z ${__tombolo_old[i]} ]] || builtin eval "${__tombolo_old[i]/#declare /declare -g }"
	done
	if [[ $2 != 0 ]]; then
		__tombolo_send '{"t":"sync"}' # what was printed comes before the error
		builtin read -r -N 1 -u 4 ack
		__tombolo_send "{\"t\":\"error\",\"name\":\"ExitCode\",\"value\":\"$2\",\"tb\":\"the last command ended with exit code $2\"}"
	fi
	__tombolo_run=()
	__tombolo_ended=$1
	__tombolo_send '{"t":"end"}'
}

__tombolo_send '{"t":"ready"}'
