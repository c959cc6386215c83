package mcpgateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Times of a server.
const (
	stopPatience  = 2 * time.Second  // to end by itself, and again after SIGTERM
	callPatience  = 10 * time.Second // that a call waits for a server that is being started again
	firstPause    = time.Second      // before a server that ended is started again …
	longestPause  = 30 * time.Second // … doubled each time, up to this
	soundAfter    = time.Minute      // one that ran so long is no longer failing
	startPatience = 30 * time.Second // for one that is started again
	maxFailures   = 8                // in a row; then it is left alone
)

// childProtocol is the version of the protocol that servers are asked for: the
// newest in which a connection has a beginning. The later one begins with a
// question that many servers take for a mistake.
const childProtocol = "2025-11-25"

// Limits on what one server may offer; the rest is left out.
const maxItems = 1000

// offer is what a server has.
type offer struct {
	tools     []*mcp.Tool
	prompts   []*mcp.Prompt
	resources []*mcp.Resource
	templates []*mcp.ResourceTemplate
}

// child is one configured server: its process, started again when it ends, and
// what it offers.
type child struct {
	Server
	gateway *Gateway
	log     *slog.Logger
	output  io.Writer // what it prints on stderr

	mu       sync.Mutex
	session  *mcp.ClientSession // nil while it does not run
	changed  chan struct{}      // closed when session changes
	reason   error              // why it does not run
	given    bool               // it is not started any more
	started  time.Time          // the last time
	failures int                // starts in a row after which it ended soon
	offer    offer
}

// start runs the server until it has answered. ctx bounds the start only.
func (c *child) start(ctx context.Context) error {
	who, err := runAs()
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.started = time.Now()
	c.mu.Unlock()
	cmd := who.command(context.Background(), c.Dir, c.Env, c.Command...)
	var last tail
	cmd.Stderr = io.MultiWriter(c.output, &last)
	process, err := startProcess(cmd, cmd.Stderr, c.gateway.progress)
	if err != nil {
		return err
	}
	client := mcp.NewClient(implementation, c.clientOptions())
	session, err := client.Connect(ctx, &mcp.IOTransport{Reader: process, Writer: process}, &mcp.ClientSessionOptions{ProtocolVersion: childProtocol})
	if err == nil {
		err = c.list(ctx, session)
	}
	if err != nil {
		process.Close()
		return fmt.Errorf("start %q: %w", c.Command, last.about(process.explain(err)))
	}
	c.set(session, nil)
	go func() {
		session.Wait()
		process.Close()
		c.ended(last.about(process.explain(errors.New("its connection ended"))))
	}()
	return nil
}

// pause is how long to wait before the next start; false when there is to be none.
func (c *child) pause() (time.Duration, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.started) > soundAfter {
		c.failures = 0
	}
	c.failures++
	return min(firstPause<<(c.failures-1), longestPause), c.failures <= maxFailures
}

func (c *child) set(session *mcp.ClientSession, reason error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.session, c.reason = session, reason
	close(c.changed)
	c.changed = make(chan struct{})
}

// broke is called by who finds the connection closed, which may be before it is
// known here: the next call is not to meet the same.
func (c *child) broke(session *mcp.ClientSession) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.session == session {
		c.session, c.reason = nil, errors.New("its connection ended")
	}
}

// ended starts the server again, unless the gateway ends, until it runs or has
// failed too often.
func (c *child) ended(reason error) {
	c.set(nil, reason)
	if c.gateway.ctx.Err() != nil {
		return
	}
	c.log.Warn("server ended", "reason", reason)
	go c.revive()
}

func (c *child) revive() {
	for {
		pause, ok := c.pause()
		if !ok {
			c.log.Error("server failed too often and is left alone", "reason", c.why())
			c.mu.Lock()
			c.given = true
			c.offer = offer{}
			c.mu.Unlock()
			c.gateway.publish()
			return
		}
		select {
		case <-time.After(pause):
		case <-c.gateway.ctx.Done():
			return
		}
		ctx, cancel := context.WithTimeout(c.gateway.ctx, startPatience)
		err := c.start(ctx)
		cancel()
		if err == nil {
			c.log.Info("server runs again")
			c.gateway.publish()
			return
		}
		c.set(nil, err)
	}
}

// why is the reason that the server does not run.
func (c *child) why() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reason
}

// live returns the session, after a while if the server is being started again.
func (c *child) live(ctx context.Context) (*mcp.ClientSession, error) {
	ctx, cancel := context.WithTimeout(ctx, callPatience)
	defer cancel()
	for {
		c.mu.Lock()
		session, changed, reason, given := c.session, c.changed, c.reason, c.given
		c.mu.Unlock()
		if session != nil {
			return session, nil
		}
		if given {
			return nil, fmt.Errorf("server %q failed too often and is not started any more: %w", c.Name, reason)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("server %q does not run and is being started again: %w", c.Name, reason)
		}
	}
}

// list asks the server what it offers.
func (c *child) list(ctx context.Context, session *mcp.ClientSession) error {
	var o offer
	var err error
	can := session.InitializeResult().Capabilities
	if can.Tools != nil {
		if o.tools, err = collect(session.Tools(ctx, nil)); err != nil {
			return fmt.Errorf("list its tools: %w", err)
		}
	}
	if can.Prompts != nil {
		if o.prompts, err = collect(session.Prompts(ctx, nil)); err != nil {
			return fmt.Errorf("list its prompts: %w", err)
		}
	}
	if can.Resources != nil {
		if o.resources, err = collect(session.Resources(ctx, nil)); err != nil {
			return fmt.Errorf("list its resources: %w", err)
		}
		// Servers that have resources need not know the method for their templates.
		o.templates, _ = collect(session.ResourceTemplates(ctx, nil))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.offer = o
	return nil
}

func collect[T any](items func(func(T, error) bool)) ([]T, error) {
	var all []T
	for item, err := range items {
		if err != nil {
			return nil, err
		}
		if len(all) == maxItems {
			break
		}
		all = append(all, item)
	}
	return all, nil
}

// relist is called when the server says that its lists changed.
func (c *child) relist(ctx context.Context, session *mcp.ClientSession) {
	if err := c.list(ctx, session); err != nil {
		c.log.Warn("server said that its lists changed and does not give them", "error", err)
		return
	}
	c.gateway.publish()
}

// clientOptions are what the server meets. It is offered no roots, no sampling and
// no elicitation: there may be any number of clients behind the gateway, or none.
func (c *child) clientOptions() *mcp.ClientOptions {
	relist := func(session *mcp.ClientSession) {
		// Not in the handler: the answer comes by the same connection.
		go func() {
			ctx, cancel := context.WithTimeout(c.gateway.ctx, startPatience)
			defer cancel()
			c.relist(ctx, session)
		}()
	}
	return &mcp.ClientOptions{
		Capabilities:               &mcp.ClientCapabilities{},
		ToolListChangedHandler:     func(_ context.Context, r *mcp.ToolListChangedRequest) { relist(r.Session) },
		PromptListChangedHandler:   func(_ context.Context, r *mcp.PromptListChangedRequest) { relist(r.Session) },
		ResourceListChangedHandler: func(_ context.Context, r *mcp.ResourceListChangedRequest) { relist(r.Session) },
		ResourceUpdatedHandler: func(ctx context.Context, r *mcp.ResourceUpdatedNotificationRequest) {
			c.gateway.server.ResourceUpdated(ctx, r.Params)
		},
	}
}
