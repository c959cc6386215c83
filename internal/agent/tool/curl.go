package tool

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
)

// Exit codes of curl, from its manual.
const (
	curlUsage    = 2
	curlResolve  = 6
	curlConnect  = 7
	curlHTTP     = 22
	curlWrite    = 23
	curlTimeout  = 28
	curlFailure  = 56
	curlMostHops = 50
)

type curlOptions struct {
	silent, showError, fail, follow, head, insecure bool
	output, format, method, agent                   string
	data                                            []string
	headers                                         http.Header
	host                                            string
	limit, connectLimit                             time.Duration
	urls                                            []string
}

// curl gets what is at one address. It knows -s -S -f -L -I -k -o -w -X -d -H -A -m
// and --connect-timeout, also by their long names.
func curl(args []string, in io.Reader, out io.Writer) error {
	o := curlOptions{headers: http.Header{}, agent: "curl/8 (tombolo)"}
	if err := o.read(args, in); err != nil {
		return err
	}
	if len(o.urls) != 1 {
		return exit{curlUsage, "give one address"}
	}
	status, err := o.fetch(out)
	if o.format != "" {
		fmt.Fprint(out, o.summary(status))
	}
	var end exit
	if errors.As(err, &end) && o.silent && !o.showError {
		end.message = ""
		return end
	}
	return err
}

var curlLong = map[string]string{
	"silent": "s", "show-error": "S", "fail": "f", "location": "L", "head": "I", "insecure": "k", "output": "o", "write-out": "w",
	"request": "X", "data": "d", "header": "H", "user-agent": "A", "max-time": "m", "connect-timeout": "connect-timeout", "url": "url",
}

func (o *curlOptions) read(args []string, in io.Reader) error {
	for i := 0; i < len(args); i++ {
		arg := args[i]
		next := func() (string, error) {
			if i++; i >= len(args) {
				return "", exit{curlUsage, "option " + arg + ": a value is missing"}
			}
			return args[i], nil
		}
		switch {
		case strings.HasPrefix(arg, "--"):
			short, ok := curlLong[arg[2:]]
			if !ok {
				return unknown(Curl, curlUsage, arg)
			}
			if err := o.set(short, arg, next, in); err != nil {
				return err
			}
		case strings.HasPrefix(arg, "-") && arg != "-":
			for at := 1; at < len(arg); at++ {
				letter := arg[at : at+1]
				value := next
				if rest := arg[at+1:]; rest != "" && strings.Contains("owXdHAm", letter) {
					value = func() (string, error) { return rest, nil }
					at = len(arg)
				}
				if err := o.set(letter, arg, value, in); err != nil {
					return err
				}
			}
		default:
			o.urls = append(o.urls, arg)
		}
	}
	return nil
}

func (o *curlOptions) set(name, as string, next func() (string, error), in io.Reader) error {
	switch name {
	case "s":
		o.silent = true
		return nil
	case "S":
		o.showError = true
		return nil
	case "f":
		o.fail = true
		return nil
	case "L":
		o.follow = true
		return nil
	case "I":
		o.head = true
		return nil
	case "k":
		o.insecure = true
		return nil
	}
	if !strings.Contains(" o w X d H A m connect-timeout url ", " "+name+" ") {
		return unknown(Curl, curlUsage, as)
	}
	value, err := next()
	if err != nil {
		return err
	}
	switch name {
	case "o":
		o.output = value
	case "w":
		o.format = value
	case "X":
		o.method = value
	case "A":
		o.agent = value
	case "url":
		o.urls = append(o.urls, value)
	case "d":
		if strings.HasPrefix(value, "@") {
			if value, err = readData(value[1:], in); err != nil {
				return exit{curlUsage, err.Error()}
			}
		}
		o.data = append(o.data, value)
	case "H":
		field, content, ok := strings.Cut(value, ":")
		if !ok {
			return unknown(Curl, curlUsage, as+" "+value)
		}
		if strings.EqualFold(field, "host") {
			o.host = strings.TrimSpace(content)
		}
		o.headers.Add(strings.TrimSpace(field), strings.TrimSpace(content))
	case "m", "connect-timeout":
		seconds, err := strconv.ParseFloat(value, 64)
		if err != nil || seconds < 0 || seconds > 1e9 {
			return exit{curlUsage, fmt.Sprintf("option %s: %q is no number of seconds", as, value)}
		}
		limit := time.Duration(seconds * float64(time.Second))
		if name == "m" {
			o.limit = limit
		} else {
			o.connectLimit = limit
		}
	}
	return nil
}

func readData(name string, in io.Reader) (string, error) {
	if name != "-" {
		text, err := os.ReadFile(name)
		return strings.NewReplacer("\r", "", "\n", "").Replace(string(text)), err
	}
	text, err := io.ReadAll(in)
	return strings.NewReplacer("\r", "", "\n", "").Replace(string(text)), err
}

// fetch makes the request and writes the answer; the status is 0 without one.
func (o *curlOptions) fetch(out io.Writer) (status int, err error) {
	ctx := context.Background()
	if o.limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.limit)
		defer cancel()
	}
	request, err := o.request(ctx)
	if err != nil {
		return 0, exit{3, err.Error()} // a malformed address
	}
	answer, err := o.client().Do(request)
	if err != nil {
		return 0, transportError(err)
	}
	defer answer.Body.Close()
	if o.fail && answer.StatusCode >= http.StatusBadRequest {
		return answer.StatusCode, exit{curlHTTP, fmt.Sprintf("The requested URL returned error: %d", answer.StatusCode)}
	}
	if o.output != "" && o.output != "-" {
		f, err := os.Create(o.output)
		if err != nil {
			return answer.StatusCode, exit{curlWrite, err.Error()}
		}
		defer f.Close()
		out = f
	}
	if o.head {
		fmt.Fprintf(out, "%s %s\r\n", answer.Proto, answer.Status)
		_ = answer.Header.Write(out)
		fmt.Fprint(out, "\r\n")
		return answer.StatusCode, nil
	}
	if _, err := io.Copy(out, answer.Body); err != nil {
		return answer.StatusCode, transportError(err)
	}
	return answer.StatusCode, nil
}

func (o *curlOptions) request(ctx context.Context) (*http.Request, error) {
	method, address := http.MethodGet, o.urls[0]
	var body io.Reader
	if o.data != nil {
		method, body = http.MethodPost, strings.NewReader(strings.Join(o.data, "&"))
	}
	if o.head {
		method = http.MethodHead
	}
	if o.method != "" {
		method = o.method
	}
	if !strings.Contains(address, "://") {
		address = "http://" + address
	}
	if !strings.HasPrefix(address, "http://") && !strings.HasPrefix(address, "https://") {
		return nil, fmt.Errorf("%s: only http and https are there", address)
	}
	request, err := http.NewRequestWithContext(ctx, method, address, body)
	if err != nil {
		return nil, err
	}
	request.Header = o.headers.Clone()
	request.Host = o.host
	for field, value := range map[string]string{"User-Agent": o.agent, "Accept": "*/*"} {
		if request.Header.Get(field) == "" {
			request.Header.Set(field, value)
		}
	}
	if o.data != nil && request.Header.Get("Content-Type") == "" {
		request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	return request, nil
}

func (o *curlOptions) client() *http.Client {
	dialer := &net.Dialer{Timeout: o.connectLimit}
	return &http.Client{
		Transport: &http.Transport{
			Proxy:              http.ProxyFromEnvironment,
			DialContext:        dialer.DialContext,
			DisableCompression: true,
			TLSClientConfig:    &tls.Config{InsecureSkipVerify: o.insecure}, // -k asks for it
		},
		CheckRedirect: func(_ *http.Request, before []*http.Request) error {
			if !o.follow {
				return http.ErrUseLastResponse
			}
			if len(before) > curlMostHops {
				return errors.New("too many redirects")
			}
			return nil
		},
	}
}

func transportError(err error) error {
	code := curlFailure
	var unresolved *net.DNSError
	var operation *net.OpError
	switch {
	case errors.Is(err, context.DeadlineExceeded), os.IsTimeout(err):
		code = curlTimeout
	case errors.As(err, &unresolved):
		code = curlResolve
	case errors.As(err, &operation) && operation.Op == "dial":
		code = curlConnect
	}
	return exit{code, err.Error()}
}

// summary is what -w prints.
func (o *curlOptions) summary(status int) string {
	return strings.NewReplacer(
		"%{http_code}", fmt.Sprintf("%03d", status), "%{response_code}", fmt.Sprintf("%03d", status),
		`\n`, "\n", `\r`, "\r", `\t`, "\t", "%%", "%",
	).Replace(o.format)
}
