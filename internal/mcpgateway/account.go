package mcpgateway

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"strings"
	"syscall"
)

// TokenVariable is the environment variable that the clients put the gateway's
// token into.
const TokenVariable = "GATEWAY_ACCESS_TOKEN"

// account is who a program runs as.
type account struct {
	name, home string
	uid, gid   int
}

// defaultUser is the account that the E2B clients' commands run as.
const defaultUser = "user"

// runAs is who the servers run as: the account that the caller's own commands
// run as, so that both may read and write what the other made; or, where there is
// no such account or the gateway was not started by root, the gateway's own.
func runAs() (account, error) {
	found, err := user.Lookup(defaultUser)
	var missing user.UnknownUserError
	if os.Geteuid() != 0 || errors.As(err, &missing) {
		found, err = user.Current()
	}
	if err != nil {
		return account{}, err
	}
	uid, err1 := strconv.Atoi(found.Uid)
	gid, err2 := strconv.Atoi(found.Gid)
	return account{found.Username, found.HomeDir, uid, gid}, errors.Join(err1, err2)
}

// command prepares a program with a process group of its own and the variables
// of the gateway, but its token.
func (a account) command(ctx context.Context, dir string, env map[string]string, argv ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir = dir
	if dir == "" {
		cmd.Dir = a.home
	}
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, TokenVariable+"=") {
			cmd.Env = append(cmd.Env, variable)
		}
	}
	cmd.Env = append(cmd.Env, "HOME="+a.home, "USER="+a.name, "LOGNAME="+a.name)
	for name, value := range env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if a.uid != os.Geteuid() {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}
	}
	return cmd
}
