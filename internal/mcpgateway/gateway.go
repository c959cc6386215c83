// Package mcpgateway runs MCP servers inside a sandbox and serves all of them as
// one, over streamable HTTP and behind a token: what the `mcp` option of the E2B
// clients expects of the program mcp-gateway.
package mcpgateway

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Port and Path are where the E2B clients look for the gateway.
const (
	Port = 50005
	Path = "/mcp"
)

// Limits on the side of the clients.
const (
	maxBody     = 4 << 20          // bytes of one request
	maxHeader   = 64 << 10         // bytes
	sessionIdle = 30 * time.Minute // then a client's session is forgotten
	startAtOnce = 4                // servers
	maxHeard    = 64               // notices of a call's progress that a client has not taken
)

var implementation = &mcp.Implementation{Name: "tombolo-mcp-gateway", Version: "1.0.0"}

// Options of a gateway.
type Options struct {
	Servers []Server
	Token   string // that every request must bear
	Log     *slog.Logger
	// Output gives the writer for what a server prints on its stderr; nil throws
	// it away.
	Output func(server string) io.Writer
}

// Gateway runs servers and serves them. Make one with [Start], end it with Close.
type Gateway struct {
	server   *mcp.Server
	children []*child
	token    [sha256.Size]byte
	log      *slog.Logger
	ctx      context.Context // ends with Close
	cancel   context.CancelFunc

	mu    sync.Mutex // one publish at a time
	shown view

	calls   sync.Mutex
	next    int
	waiting map[string]chan *mcp.ProgressNotificationParams // who wants to hear of a call's progress, by our token
}

// Start installs what is missing and starts all servers. It returns when each has
// said what it offers; if one cannot, none runs on. ctx bounds the start only.
func Start(ctx context.Context, o Options) (*Gateway, error) {
	g := &Gateway{token: sha256.Sum256([]byte(o.Token)), log: o.Log, waiting: map[string]chan *mcp.ProgressNotificationParams{}, shown: newView()}
	if o.Token == "" {
		return nil, errors.New("a gateway needs a token")
	}
	g.ctx, g.cancel = context.WithCancel(context.Background())
	g.server = mcp.NewServer(implementation, &mcp.ServerOptions{
		// What is not there at the start may come later.
		Capabilities: &mcp.ServerCapabilities{
			Tools:     &mcp.ToolCapabilities{ListChanged: true},
			Prompts:   &mcp.PromptCapabilities{ListChanged: true},
			Resources: &mcp.ResourceCapabilities{ListChanged: true, Subscribe: true},
		},
		CompletionHandler: g.complete,
		SubscribeHandler:  func(ctx context.Context, r *mcp.SubscribeRequest) error { return g.subscribe(ctx, r.Params.URI, true) },
		UnsubscribeHandler: func(ctx context.Context, r *mcp.UnsubscribeRequest) error {
			return g.subscribe(ctx, r.Params.URI, false)
		},
	})
	for _, s := range o.Servers {
		output := io.Discard
		if o.Output != nil {
			output = o.Output(s.Name)
		}
		g.children = append(g.children, &child{
			Server: s, gateway: g, log: o.Log.With("server", s.Name), output: output, changed: make(chan struct{}),
		})
	}
	if err := g.startAll(ctx); err != nil {
		g.Close()
		return nil, err
	}
	g.publish()
	return g, nil
}

func (g *Gateway) startAll(ctx context.Context) error {
	for _, c := range g.children { // one after the other: npm has one project for all
		if c.install == nil || c.install.present() {
			continue
		}
		if err := c.install.install(ctx); err != nil {
			if ctx.Err() != nil {
				err = fmt.Errorf("installing it takes too long here; put it into a template (`mcp-gateway pull`): %w", err)
			}
			return fmt.Errorf("server %q: %w", c.Name, err)
		}
	}
	errs := make([]error, len(g.children))
	slots := make(chan struct{}, startAtOnce)
	var all sync.WaitGroup
	for i, c := range g.children {
		all.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			if err := c.start(ctx); err != nil {
				errs[i] = fmt.Errorf("server %q: %w", c.Name, err)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// Close ends the servers.
func (g *Gateway) Close() {
	g.cancel()
	var all sync.WaitGroup
	for _, c := range g.children {
		c.mu.Lock()
		session := c.session
		c.mu.Unlock()
		if session != nil {
			all.Go(func() { session.Close() })
		}
	}
	all.Wait()
}

// Serve answers clients until ctx ends or listening fails.
func (g *Gateway) Serve(ctx context.Context, listener net.Listener) error {
	s := &http.Server{
		Handler: g.Handler(), ReadHeaderTimeout: 10 * time.Second, MaxHeaderBytes: maxHeader,
		ErrorLog: slog.NewLogLogger(g.log.Handler(), slog.LevelWarn),
	}
	defer context.AfterFunc(ctx, func() { s.Close() })()
	if err := s.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Handler is the gateway's HTTP side.
func (g *Gateway) Handler() http.Handler {
	stream := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return g.server }, &mcp.StreamableHTTPOptions{
		Logger: g.log, SessionTimeout: sessionIdle, MaxRequestBodyBytes: maxBody,
		// Requests from outside come by loopback too, with a name in Host; whoever
		// has the token may come from anywhere.
		DisableLocalhostProtection: true,
	})
	mux := http.NewServeMux()
	mux.Handle(Path, g.authorized(stream))
	return mux
}

func (g *Gateway) authorized(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		sum := sha256.Sum256([]byte(token))
		if !strings.EqualFold(scheme, "Bearer") || subtle.ConstantTimeCompare(sum[:], g.token[:]) != 1 {
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "the header Authorization must be: Bearer TOKEN, with the gateway's token", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// view is what clients see: each thing by the name it is shown under.
type view struct {
	tools     map[string]shown[*mcp.Tool]
	prompts   map[string]shown[*mcp.Prompt]
	resources map[string]shown[*mcp.Resource]
	templates map[string]shown[*mcp.ResourceTemplate]
}

// shown is a thing of a server; it is not known there by the name it has here.
type shown[T any] struct {
	child *child
	item  T
}

func newView() view {
	return view{
		map[string]shown[*mcp.Tool]{}, map[string]shown[*mcp.Prompt]{},
		map[string]shown[*mcp.Resource]{}, map[string]shown[*mcp.ResourceTemplate]{},
	}
}

// look makes the view of what the servers offer now.
func (g *Gateway) look() view {
	v := newView()
	tools, prompts := map[string]int{}, map[string]int{}
	offers := make([]offer, len(g.children))
	for i, c := range g.children {
		c.mu.Lock()
		offers[i] = c.offer
		c.mu.Unlock()
		for _, t := range offers[i].tools {
			tools[t.Name]++
		}
		for _, p := range offers[i].prompts {
			prompts[p.Name]++
		}
	}
	for i, c := range g.children {
		for _, t := range offers[i].tools {
			v.tools[c.publicName(t.Name, tools[t.Name])] = shown[*mcp.Tool]{c, t}
		}
		for _, p := range offers[i].prompts {
			v.prompts[c.publicName(p.Name, prompts[p.Name])] = shown[*mcp.Prompt]{c, p}
		}
		// An address says which thing it is: the first server that has it gives it.
		for _, r := range offers[i].resources {
			if _, taken := v.resources[r.URI]; !taken {
				v.resources[r.URI] = shown[*mcp.Resource]{c, r}
			}
		}
		for _, t := range offers[i].templates {
			if _, taken := v.templates[t.URITemplate]; !taken {
				v.templates[t.URITemplate] = shown[*mcp.ResourceTemplate]{c, t}
			}
		}
	}
	return v
}

var notInNames = regexp.MustCompile(`[^A-Za-z0-9_-]+`)

// publicName is the name of a tool or prompt, with the server's before it when
// others have one of that name.
func (c *child) publicName(name string, owners int) string {
	if owners < 2 {
		return name
	}
	server := c.Name[strings.LastIndexByte(c.Name, '/')+1:]
	return notInNames.ReplaceAllString(server, "_") + "_" + name
}

// publish shows what the servers offer now. Clients are told of what changed.
func (g *Gateway) publish() {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.look()
	g.server.RemoveTools(gone(g.shown.tools, now.tools)...)
	g.server.RemovePrompts(gone(g.shown.prompts, now.prompts)...)
	g.server.RemoveResources(gone(g.shown.resources, now.resources)...)
	g.server.RemoveResourceTemplates(gone(g.shown.templates, now.templates)...)
	show(g, g.shown.tools, now.tools, g.addTool)
	show(g, g.shown.prompts, now.prompts, g.addPrompt)
	show(g, g.shown.resources, now.resources, g.addResource)
	show(g, g.shown.templates, now.templates, g.addTemplate)
	g.shown = now
}

// gone are the names that are shown and are no longer to be.
func gone[T any](before, now map[string]shown[T]) []string {
	var names []string
	for name := range before {
		if _, stays := now[name]; !stays {
			names = append(names, name)
		}
	}
	return names
}

// show adds what is new or changed. The library panics on what it finds malformed;
// a server that has one such thing has its others still.
func show[T any](g *Gateway, before, now map[string]shown[T], add func(name string, s shown[T])) {
	for name, s := range now {
		if was, ok := before[name]; ok && was.child == s.child && reflect.DeepEqual(was.item, s.item) {
			continue
		}
		func() {
			defer func() {
				if p := recover(); p != nil {
					g.log.Warn("left out what a server offers", "server", s.child.Name, "name", name, "reason", p)
				}
			}()
			add(name, s)
		}()
	}
}

func (g *Gateway) addTool(name string, s shown[*mcp.Tool]) {
	public := *s.item
	public.Name = name
	g.server.AddTool(&public, func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		session, err := s.child.live(ctx)
		if err != nil {
			return failed(err), nil
		}
		params := &mcp.CallToolParams{Name: s.item.Name, Arguments: json.RawMessage(r.Params.Arguments)}
		if len(r.Params.Arguments) == 0 {
			params.Arguments = nil
		}
		if token := r.Params.GetProgressToken(); token != nil {
			ours, stop := g.passProgress(ctx, r.Session, token)
			defer stop()
			params.SetProgressToken(ours)
		}
		result, err := session.CallTool(ctx, params)
		if answer := (*jsonrpc.Error)(nil); err != nil && ctx.Err() == nil && !errors.As(err, &answer) {
			s.child.broke(session)
			return failed(fmt.Errorf("server %q ended during the call; it is started again: %w", s.child.Name, err)), nil
		}
		return result, err
	})
}

// failed is the result of a call that the caller's model is to read.
func failed(err error) *mcp.CallToolResult {
	return &mcp.CallToolResult{IsError: true, Content: []mcp.Content{&mcp.TextContent{Text: err.Error()}}}
}

func (g *Gateway) addPrompt(name string, s shown[*mcp.Prompt]) {
	public := *s.item
	public.Name = name
	g.server.AddPrompt(&public, func(ctx context.Context, r *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
		session, err := s.child.live(ctx)
		if err != nil {
			return nil, err
		}
		return session.GetPrompt(ctx, &mcp.GetPromptParams{Name: s.item.Name, Arguments: r.Params.Arguments})
	})
}

func (g *Gateway) addResource(_ string, s shown[*mcp.Resource]) {
	g.server.AddResource(s.item, read(s.child))
}

func (g *Gateway) addTemplate(_ string, s shown[*mcp.ResourceTemplate]) {
	g.server.AddResourceTemplate(s.item, read(s.child))
}

func read(c *child) mcp.ResourceHandler {
	return func(ctx context.Context, r *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
		session, err := c.live(ctx)
		if err != nil {
			return nil, err
		}
		return session.ReadResource(ctx, &mcp.ReadResourceParams{URI: r.Params.URI})
	}
}

// complete passes a question for completions to the server whose prompt or
// resource it is about.
func (g *Gateway) complete(ctx context.Context, r *mcp.CompleteRequest) (*mcp.CompleteResult, error) {
	params := *r.Params
	if params.Ref == nil {
		return nil, errors.New("ref is missing")
	}
	ref := *params.Ref
	params.Ref, params.Meta = &ref, nil
	g.mu.Lock()
	var owner *child
	if s, ok := g.shown.prompts[ref.Name]; ok && ref.Type == "ref/prompt" {
		owner, ref.Name = s.child, s.item.Name
	} else if s, ok := g.shown.templates[ref.URI]; ok && ref.Type == "ref/resource" {
		owner = s.child
	}
	g.mu.Unlock()
	if owner == nil {
		return nil, fmt.Errorf("no server has %s %s%s", ref.Type, ref.Name, ref.URI)
	}
	session, err := owner.live(ctx)
	if err != nil {
		return nil, err
	}
	return session.Complete(ctx, &params)
}

// subscribe passes on that a client wants to hear of a resource. A server that
// does not know of subscriptions is no error: its resource may have no other way.
func (g *Gateway) subscribe(ctx context.Context, uri string, on bool) error {
	g.mu.Lock()
	s, ok := g.shown.resources[uri]
	children := g.children
	g.mu.Unlock()
	if ok {
		children = []*child{s.child}
	}
	var last error
	for _, c := range slices.Clone(children) {
		session, err := c.live(ctx)
		if err != nil {
			last = err
			continue
		}
		can := session.InitializeResult().Capabilities.Resources
		if can == nil || !can.Subscribe {
			continue
		}
		if on {
			err = session.Subscribe(ctx, &mcp.SubscribeParams{URI: uri})
		} else {
			err = session.Unsubscribe(ctx, &mcp.UnsubscribeParams{URI: uri})
		}
		if err == nil {
			return nil
		}
		last = err
	}
	return last
}

// passProgress passes on what a server says of the progress of one call, until
// stop, which waits for the rest of it. Servers get a token of ours, for those of
// different clients may be equal.
func (g *Gateway) passProgress(ctx context.Context, to *mcp.ServerSession, token any) (ours string, stop func()) {
	heard := make(chan *mcp.ProgressNotificationParams, maxHeard)
	g.calls.Lock()
	g.next++
	ours = fmt.Sprint("call-", g.next)
	g.waiting[ours] = heard
	g.calls.Unlock()
	var passing sync.WaitGroup
	passing.Go(func() {
		for p := range heard {
			passed := *p
			passed.ProgressToken = token
			to.NotifyProgress(ctx, &passed)
		}
	})
	return ours, func() {
		g.calls.Lock()
		delete(g.waiting, ours)
		close(heard)
		g.calls.Unlock()
		passing.Wait()
	}
}

// progress hears of the progress of a call. It never waits: what a client does not
// take in time is left out.
func (g *Gateway) progress(p *mcp.ProgressNotificationParams) {
	token, _ := p.ProgressToken.(string)
	g.calls.Lock()
	defer g.calls.Unlock()
	select {
	case g.waiting[token] <- p: // nil, and never ready, when nobody waits
	default:
	}
}
