package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tombolo-dev/tombolo/internal/api/control"
	ownapi "github.com/tombolo-dev/tombolo/internal/api/tombolo"
	"github.com/tombolo-dev/tombolo/internal/approval"
	"github.com/tombolo-dev/tombolo/internal/event"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
)

// addRemoteFlags has commands take the address of a server elsewhere, and a key with a role.
func addRemoteFlags(cmd *cobra.Command, role string) {
	cmd.PersistentFlags().String("url", "", "address of a server elsewhere, e.g. https://sandboxes.example.com")
	cmd.PersistentFlags().String("key-file", "", "file with a key that has the role "+role+", for --url (default: the variable TOMBOLO_API_KEY)")
}

// remote is the API of the server that --url names; nil where there is no --url.
func remote(cmd *cobra.Command) (*ownapi.Client, error) {
	address, _ := cmd.Flags().GetString("url")
	file, _ := cmd.Flags().GetString("key-file")
	switch {
	case address == "" && file != "":
		return nil, errors.New("--key-file goes with --url; here root needs no key")
	case address == "":
		return nil, nil
	}
	key := os.Getenv("TOMBOLO_API_KEY")
	if file != "" {
		raw, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("read the key: %w", err)
		}
		key = string(raw)
	}
	if key = strings.TrimSpace(key); key == "" {
		return nil, errors.New("--url needs a key: in the variable TOMBOLO_API_KEY or by --key-file")
	}
	return ownapi.NewClient(address, key, nil), nil
}

// ownerAPI is our own API with the rights of the machine's owner, over the socket.
func ownerAPI(client *control.Client) *ownapi.Client {
	return ownapi.NewClient("http://tombolo", "", client.HTTP())
}

// noneLive are the sandboxes of a process that has none: those there are, the store knows.
type noneLive struct{ sandbox.Sandboxes }

// Get implements sandbox.Sandboxes.
func (noneLive) Get(string) (sandbox.Info, error) { return sandbox.Info{}, sandbox.ErrNotFound }

// withDesk answers to a command itself what concerns approvals, where no server does: a
// `tombolo run` may wait, and sees in the store what was answered.
func withDesk(ctx context.Context, c config, run func(api *ownapi.Client) error) error {
	if err := needRoot(); err != nil {
		return err
	}
	log, err := newLogger(c)
	if err != nil {
		return err
	}
	records, err := openStore(ctx, c)
	if err != nil {
		return err
	}
	err = withTrail(c, func(t trail) error {
		events := event.NewRecorder(records, log)
		defer events.Close()
		audited, told := recordHolds(t.log), recordApprovals(records, events, log)
		desk, err := approval.Open(ctx, approval.Config{Store: records, Log: log, OnChange: func(h approval.Hold) {
			audited(h)
			told(h)
		}})
		if err != nil {
			return err
		}
		defer desk.Close()
		api := ownapi.New(ownapi.Options{Store: records, Sandboxes: noneLive{}, Desk: desk, Log: log})
		defer api.Close()
		return serveHere(api.ForOwner(), run)
	})
	return errors.Join(err, records.Close())
}

// serveHere gives a command a client of a handler in this process.
func serveHere(handler http.Handler, run func(api *ownapi.Client) error) error {
	dir, err := os.MkdirTemp("", "tombolo-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	socket := filepath.Join(dir, "api.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: handler}
	defer server.Close()
	go server.Serve(listener)
	var d net.Dialer
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return d.DialContext(ctx, "unix", socket)
	}}}
	return run(ownapi.NewClient("http://tombolo", "", client))
}
