package kernel_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRequestsThatAreRefused(t *testing.T) {
	b := newBox(t, "/nonexistent/python3")
	b.token = "secret"
	big := `{"code": "` + strings.Repeat("x", 5<<20) + `"}`
	huge := `{"code": "` + strings.Repeat("x", 9<<20) + `"}`
	for _, c := range []struct {
		method, path, content, token string
		status                       int
		says                         string
	}{
		{"GET", "/health", "", "", 200, "OK"},
		{"POST", "/execute", `{"code":"1"}`, "", 401, "X-Access-Token"},
		{"POST", "/execute", `{"code":"1"}`, "wrong", 401, "X-Access-Token"},
		{"POST", "/execute", `{"code":`, "secret", 400, "JSON"},
		{"POST", "/execute", `[]`, "secret", 400, "JSON"},
		{"POST", "/execute", `{"code":"1","context_id":"a","language":"python"}`, "secret", 400, "context_id"},
		{"POST", "/execute", `{"code":"1","context_id":"nope"}`, "secret", 404, "Context nope not found"},
		{"POST", "/execute", `{"code":"1","language":"cobol"}`, "secret", 400, "it has: bash, javascript, python"},
		{"POST", "/execute", `{"code":"1","env_vars":{"A=B":"1"}}`, "secret", 400, "env_vars"},
		{"POST", "/execute", `{"code":"1","env_vars":{"A":"` + strings.Repeat("x", 300<<10) + `"}}`, "secret", 400, "env_vars"},
		{"POST", "/execute", big, "secret", 413, "bytes"},
		{"POST", "/execute", huge, "secret", 413, "bytes"},
		{"POST", "/execute", `{"code":"1"}`, "secret", 500, "/nonexistent/python3"},
		{"POST", "/contexts", `{"cwd":"/nonexistent"}`, "", 400, "/nonexistent is not a folder"},
		{"POST", "/contexts", `{"language":"cobol"}`, "", 400, "it has: bash, javascript, python"},
		{"POST", "/contexts", `nonsense`, "", 400, "JSON"},
		{"POST", "/contexts", `{}`, "", 500, "/nonexistent/python3"},
		{"DELETE", "/contexts/nope", "", "", 404, "Context nope not found"},
		{"POST", "/contexts/nope/restart", "", "", 404, "Context nope not found"},
	} {
		status, answer := b.ask(c.method, c.path, c.content, c.token)
		require.Equal(t, c.status, status, "%s %s %.80s: %s", c.method, c.path, c.content, answer)
		require.Contains(t, answer, c.says)
	}
}

func TestPythonWithoutIPythonSaysWhatToAdd(t *testing.T) {
	b := newBox(t, "/usr/bin/python3")
	status, answer := b.ask("POST", "/execute", `{"code":"1"}`, "")
	if status == 200 {
		t.Skip("the system's python3 has IPython")
	}
	require.Equal(t, 500, status)
	require.Contains(t, answer, "add the packages ipython and matplotlib-inline")
}

func TestContextsAreIsolatedAndKeepTheirID(t *testing.T) {
	b := start(t)
	dir := t.TempDir()
	status, answer := b.ask("POST", "/contexts", `{"cwd":"`+dir+`"}`, "")
	require.Equal(t, 200, status, answer)
	var made struct{ ID, Language, Cwd string }
	decodeJSON(t, strings.NewReader(answer), &made)
	require.Equal(t, "python", made.Language)
	require.Equal(t, dir, made.Cwd)

	b.run("x = 'default'")
	in := func(code string) run { return b.execute(body{"code": code, "context_id": made.ID}) }
	require.Equal(t, "NameError", in("x").errorName())
	require.Equal(t, dir, in("x = 'mine'\nimport os; os.getcwd()").main()["text"])
	require.Equal(t, "default", b.execute(body{"code": "x", "language": "python"}).main()["text"])
	require.Equal(t, "mine", in("x").main()["text"])
	require.Len(t, b.list(), 2)

	status, answer = b.ask("POST", "/contexts/"+made.ID+"/restart", "", "")
	require.Equal(t, 200, status, answer)
	require.Equal(t, "NameError", in("x").errorName())
	require.EqualValues(t, 2, in("1").find("number_of_executions")[0]["execution_count"])

	status, _ = b.ask("DELETE", "/contexts/"+made.ID, "", "")
	require.Equal(t, 204, status)
	status, answer = b.ask("POST", "/execute", `{"code":"1","context_id":"`+made.ID+`"}`, "")
	require.Equal(t, 404, status)
	require.Equal(t, "Context "+made.ID+" not found", answer)
	require.Len(t, b.list(), 1)
}

func TestRestartEndsWhatRuns(t *testing.T) {
	b := start(t)
	b.run("1")
	id := b.list()[0]["id"].(string)
	ended := make(chan run)
	ctx := context.Background()
	resp, err := b.post(ctx, "/execute", body{"code": "print('on')\nwhile True: pass"})
	require.NoError(t, err)
	defer resp.Body.Close()
	go func() { ended <- readLines(t, resp.Body) }()
	status, answer := b.ask("POST", "/contexts/"+id+"/restart", "", "")
	require.Equal(t, 200, status, answer)
	r := <-ended
	require.Equal(t, "KernelDied", r.errorName())
	require.Contains(t, r.find("error")[0]["value"], "restarted")
	require.Equal(t, "2", b.run("1+1").main()["text"])
}
