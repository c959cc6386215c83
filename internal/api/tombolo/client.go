package tombolo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/tombolo-dev/tombolo/internal/approval"
)

// maxAnswer bounds what the client reads of an answer, bytes.
const maxAnswer = 64 << 20

// Client calls the API.
type Client struct {
	base string
	key  string
	http *http.Client
}

// NewClient returns a client of the server at an address, http://host:port. key is the
// secret of an API key; empty on the owner's socket, whose client it takes. A
// nil client is http.DefaultClient.
func NewClient(address, key string, client *http.Client) *Client {
	if client == nil {
		client = http.DefaultClient
	}
	return &Client{base: strings.TrimSuffix(address, "/") + Prefix, key: key, http: client}
}

// Approvals lists holds, newest first. Of the filter's states the first counts.
func (c *Client) Approvals(ctx context.Context, f approval.Filter) (holds []approval.Hold, err error) {
	q := url.Values{}
	set := func(name, value string) {
		if value != "" {
			q.Set(name, value)
		}
	}
	set("sandbox", f.SandboxID)
	set("before", f.Before)
	if len(f.States) > 0 {
		set("state", string(f.States[0]))
	}
	if f.Most > 0 {
		set("limit", strconv.Itoa(f.Most))
	}
	return holds, c.do(ctx, http.MethodGet, "/approvals?"+q.Encode(), nil, &holds)
}

// Approval finds a hold.
func (c *Client) Approval(ctx context.Context, id string) (h approval.Hold, err error) {
	return h, c.do(ctx, http.MethodGet, "/approvals/"+url.PathEscape(id), nil, &h)
}

// Answer decides a hold.
func (c *Client) Answer(ctx context.Context, id string, req AnswerRequest) (h approval.Hold, err error) {
	return h, c.do(ctx, http.MethodPost, "/approvals/"+url.PathEscape(id)+"/answer", req, &h)
}

// Propose suggests a rule for a hold of one's own sandbox.
func (c *Client) Propose(ctx context.Context, id string, p approval.Proposal) (h approval.Hold, err error) {
	return h, c.do(ctx, http.MethodPost, "/approvals/"+url.PathEscape(id)+"/proposal", p, &h)
}

// Grants lists what answers left.
func (c *Client) Grants(ctx context.Context) (grants []approval.Grant, err error) {
	return grants, c.do(ctx, http.MethodGet, "/grants", nil, &grants)
}

// Revoke takes a grant away.
func (c *Client) Revoke(ctx context.Context, id string) error {
	return c.do(ctx, http.MethodDelete, "/grants/"+url.PathEscape(id), nil, nil)
}

func (c *Client) do(ctx context.Context, method, path string, in, out any) error {
	response, err := c.send(ctx, method, path, in, nil)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if out == nil {
		return nil
	}
	if err := json.NewDecoder(io.LimitReader(response.Body, maxAnswer)).Decode(out); err != nil {
		return fmt.Errorf("read the server's answer: %w", err)
	}
	return nil
}

// send returns an answer that is no error; the caller closes its body.
func (c *Client) send(ctx context.Context, method, path string, in any, headers map[string]string) (*http.Response, error) {
	var body io.Reader
	if in != nil {
		raw, err := json.Marshal(in)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(raw)
	}
	request, err := http.NewRequestWithContext(ctx, method, c.base+path, body)
	if err != nil {
		return nil, err
	}
	if c.key != "" {
		request.Header.Set("X-API-KEY", c.key)
	}
	if in != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	for name, value := range headers {
		request.Header.Set(name, value)
	}
	response, err := c.http.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode/100 == 2 {
		return response, nil
	}
	defer response.Body.Close()
	return nil, readError(response)
}

// readError makes the error of an answer that is one.
func readError(response *http.Response) error {
	var body struct{ Error *Error }
	raw, err := io.ReadAll(io.LimitReader(response.Body, maxBody))
	if err != nil || json.Unmarshal(raw, &body) != nil || body.Error == nil || body.Error.Message == "" {
		return fmt.Errorf("the server answered %s, which is no answer of a tombolo with this API", response.Status)
	}
	body.Error.Status = response.StatusCode
	return body.Error
}

// HasCode tells whether an error is one of the API with a code.
func HasCode(err error, code string) bool {
	var e *Error
	return errors.As(err, &e) && e.Code == code
}
