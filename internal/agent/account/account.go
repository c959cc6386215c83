// Package account reads the users of the sandbox, and resolves the paths that
// requests name as one of them. It reads /etc/passwd and /etc/group itself, so
// that the agent needs no C library, and changes nothing.
package account

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// ErrUnknown says that no line of passwd has the name.
var ErrUnknown = errors.New("unknown user")

// fileLimit bounds how much of passwd or group is read, bytes: the sandbox may
// write anything there.
const fileLimit = 4 << 20

// Account is a user of the sandbox.
type Account struct {
	Name   string
	UID    uint32
	GID    uint32
	Groups []uint32 // supplementary, without GID
	Home   string
	Shell  string
}

// Database looks accounts up. It reads a file again when it has changed. Safe
// for concurrent use.
type Database struct {
	passwd, group file

	mu     sync.Mutex
	byName map[string]Account
	users  map[uint32]string
	groups map[uint32]string
}

// Open returns the database kept in two files, normally /etc/passwd and
// /etc/group. Neither has to exist.
func Open(passwd, group string) *Database {
	return &Database{passwd: file{path: passwd}, group: file{path: group}}
}

// Lookup finds an account by name, or by number where no name matches. The
// error wraps ErrUnknown.
func (d *Database) Lookup(name string) (Account, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.refresh()
	if a, ok := d.byName[name]; ok {
		return a, nil
	}
	if uid, err := strconv.ParseUint(name, 10, 32); err == nil {
		if known, ok := d.users[uint32(uid)]; ok {
			return d.byName[known], nil
		}
	}
	return Account{}, fmt.Errorf("%w %q", ErrUnknown, name)
}

// UserName names a uid; its digits when it has no name.
func (d *Database) UserName(uid uint32) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.refresh()
	if name, ok := d.users[uid]; ok {
		return name
	}
	return strconv.FormatUint(uint64(uid), 10)
}

// GroupName names a gid; its digits when it has no name.
func (d *Database) GroupName(gid uint32) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.refresh()
	if name, ok := d.groups[gid]; ok {
		return name
	}
	return strconv.FormatUint(uint64(gid), 10)
}

// Group finds the number of a group by its name.
func (d *Database) Group(name string) (gid uint32, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.refresh()
	for gid, known := range d.groups {
		if known == name {
			return gid, true
		}
	}
	return 0, false
}

func (d *Database) refresh() {
	changedUsers := d.passwd.changed()
	changedGroups := d.group.changed()
	if d.byName != nil && !changedUsers && !changedGroups {
		return
	}
	d.byName, d.users = parsePasswd(d.passwd.read())
	groups, members := parseGroup(d.group.read())
	d.groups = groups
	for name, gids := range members {
		a, ok := d.byName[name]
		if !ok {
			continue
		}
		a.Groups = slices.DeleteFunc(gids, func(gid uint32) bool { return gid == a.GID })
		d.byName[name] = a
	}
}

// parsePasswd reads lines "name:password:uid:gid:comment:home:shell"; the
// first line with a name or a uid counts, as in the C library.
func parsePasswd(text []byte) (map[string]Account, map[uint32]string) {
	byName, users := map[string]Account{}, map[uint32]string{}
	for line := range bytes.Lines(text) {
		f := strings.Split(strings.TrimSpace(string(line)), ":")
		if len(f) < 7 || f[0] == "" || strings.HasPrefix(f[0], "#") {
			continue
		}
		uid, errUID := strconv.ParseUint(f[2], 10, 32)
		gid, errGID := strconv.ParseUint(f[3], 10, 32)
		if errUID != nil || errGID != nil {
			continue
		}
		a := Account{Name: f[0], UID: uint32(uid), GID: uint32(gid), Home: f[5], Shell: f[6]}
		if a.Home == "" {
			a.Home = "/"
		}
		if a.Shell == "" {
			a.Shell = "/bin/sh"
		}
		if _, taken := byName[a.Name]; !taken {
			byName[a.Name] = a
		}
		if _, taken := users[a.UID]; !taken {
			users[a.UID] = a.Name
		}
	}
	return byName, users
}

// groupsLimit is how many supplementary groups the kernel takes.
const groupsLimit = 65536

// parseGroup reads lines "name:password:gid:member,member".
func parseGroup(text []byte) (map[uint32]string, map[string][]uint32) {
	groups, members := map[uint32]string{}, map[string][]uint32{}
	for line := range bytes.Lines(text) {
		f := strings.Split(strings.TrimSpace(string(line)), ":")
		if len(f) < 4 || f[0] == "" || strings.HasPrefix(f[0], "#") {
			continue
		}
		gid, err := strconv.ParseUint(f[2], 10, 32)
		if err != nil {
			continue
		}
		if _, taken := groups[uint32(gid)]; !taken {
			groups[uint32(gid)] = f[0]
		}
		for member := range strings.SplitSeq(f[3], ",") {
			if member != "" && len(members[member]) < groupsLimit {
				members[member] = append(members[member], uint32(gid))
			}
		}
	}
	return groups, members
}

// file remembers what a file looked like when it was read last.
type file struct {
	path  string
	size  int64
	when  time.Time
	known bool
}

func (f *file) changed() bool {
	info, err := os.Stat(f.path)
	if err != nil {
		was := f.known
		f.size, f.when, f.known = 0, time.Time{}, false
		return was
	}
	if f.known && info.Size() == f.size && info.ModTime().Equal(f.when) {
		return false
	}
	f.size, f.when, f.known = info.Size(), info.ModTime(), true
	return true
}

func (f *file) read() []byte {
	if !f.known || f.size > fileLimit {
		return nil
	}
	text, err := os.ReadFile(f.path)
	if err != nil || len(text) > fileLimit {
		return nil
	}
	return text
}
