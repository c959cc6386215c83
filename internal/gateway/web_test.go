package gateway_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strconv"
	"testing"

	"github.com/tombolo-dev/tombolo/internal/gateway"
)

// webServer answers each request with its Host and target.
func webServer(conn net.Conn) {
	reader := bufio.NewReader(conn)
	for {
		request, err := http.ReadRequest(reader)
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, request.Body)
		body := "host " + request.Host + " target " + request.RequestURI + "\n"
		_, err = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: "+strconv.Itoa(len(body))+"\r\n\r\n"+body)
		if err != nil {
			return
		}
	}
}

func withInterceptor(testing.TB) func(*gateway.Config) { return func(*gateway.Config) {} }
