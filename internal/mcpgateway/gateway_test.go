package mcpgateway_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/mcpgateway"
)

// asServer makes the test binary an MCP server with these tools.
const asServer = "MCPGATEWAY_TEST_TOOL"

func TestMain(m *testing.M) {
	if tool := os.Getenv(asServer); tool != "" {
		serve(tool)
		return
	}
	os.Exit(m.Run())
}

func serve(tool string) {
	fmt.Println("no message of the protocol")
	s := mcp.NewServer(&mcp.Implementation{Name: tool, Version: "1"}, nil)
	type none struct{}
	mcp.AddTool(s, &mcp.Tool{Name: "same"}, func(context.Context, *mcp.CallToolRequest, none) (*mcp.CallToolResult, any, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: tool}}}, nil, nil
	})
	mcp.AddTool(s, &mcp.Tool{Name: tool}, func(context.Context, *mcp.CallToolRequest, none) (*mcp.CallToolResult, any, error) {
		os.Exit(7)
		return nil, nil, nil
	})
	_ = s.Run(context.Background(), &mcp.StdioTransport{})
}

// startGateway runs servers that have a tool of that name and one called "same".
func startGateway(t *testing.T, names ...string) *mcp.ClientSession {
	t.Helper()
	var servers []mcpgateway.Server
	for _, name := range names {
		servers = append(servers, mcpgateway.Server{
			Name: name, Command: []string{os.Args[0]}, Env: map[string]string{asServer: name}, Dir: "/",
		})
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	g, err := mcpgateway.Start(ctx, mcpgateway.Options{Servers: servers, Token: "secret", Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	t.Cleanup(g.Close)
	server := httptest.NewServer(g.Handler())
	t.Cleanup(server.Close)

	answer, err := http.Post(server.URL+mcpgateway.Path, "application/json", nil)
	require.NoError(t, err)
	answer.Body.Close()
	require.Equal(t, http.StatusUnauthorized, answer.StatusCode)

	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	session, err := client.Connect(t.Context(), &mcp.StreamableClientTransport{
		Endpoint: server.URL + mcpgateway.Path, HTTPClient: &http.Client{Transport: bearer{}},
	}, nil)
	require.NoError(t, err)
	t.Cleanup(func() { session.Close() })
	return session
}

type bearer struct{}

func (bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "bearer secret")
	return http.DefaultTransport.RoundTrip(r)
}

func call(t *testing.T, session *mcp.ClientSession, tool string) (text string, failed bool) {
	t.Helper()
	result, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: tool})
	require.NoError(t, err)
	require.NotEmpty(t, result.Content)
	return result.Content[0].(*mcp.TextContent).Text, result.IsError
}

func TestServersOfOneNameAreToldApart(t *testing.T) {
	session := startGateway(t, "a", "github/owner/b.c")
	tools, err := session.ListTools(t.Context(), nil)
	require.NoError(t, err)
	var names []string
	for _, tool := range tools.Tools {
		names = append(names, tool.Name)
	}
	slices.Sort(names)
	require.Equal(t, []string{"a", "a_same", "b_c_same", "github/owner/b.c"}, names)
	text, _ := call(t, session, "b_c_same")
	require.Equal(t, "github/owner/b.c", text)
}

func TestAServerThatEndsIsStartedAgain(t *testing.T) {
	session := startGateway(t, "a")
	text, failed := call(t, session, "a")
	require.True(t, failed)
	require.Contains(t, text, "ended during the call")
	text, failed = call(t, session, "same")
	require.False(t, failed, text)
	require.Equal(t, "a", text)
}

func TestAStartThatFailsSaysWhy(t *testing.T) {
	for _, c := range []struct {
		command []string
		says    []string
	}{
		{[]string{"/no/such/program"}, []string{"no such file"}},
		{[]string{"sh", "-c", "echo broken >&2; exit 3"}, []string{"broken", "exit status 3"}},
	} {
		_, err := mcpgateway.Start(t.Context(), mcpgateway.Options{
			Servers: []mcpgateway.Server{{Name: "x", Command: c.command, Dir: "/"}}, Token: "secret",
			Log: slog.New(slog.DiscardHandler), Output: func(string) io.Writer { return io.Discard },
		})
		require.ErrorContains(t, err, `"x"`)
		for _, part := range c.says {
			require.ErrorContains(t, err, part)
		}
	}
}
