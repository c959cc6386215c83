package intercept_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/tombolo-dev/tombolo/internal/gateway"
	"github.com/tombolo-dev/tombolo/internal/gateway/intercept"
)

type text = wrapperspb.StringValue

func TestGRPC(t *testing.T) {
	mux := http.NewServeMux()
	mux.Handle("/echo.Echo/Chat", connect.NewBidiStreamHandler("/echo.Echo/Chat",
		func(_ context.Context, s *connect.BidiStream[text, text]) error {
			for {
				message, err := s.Receive()
				if errors.Is(err, io.EOF) {
					return connect.NewError(connect.CodeAborted, errors.New("that is all"))
				}
				if err != nil {
					return err
				}
				if err := s.Send(message); err != nil {
					return err
				}
			}
		}))
	for _, tls := range []bool{true, false} {
		w := inWorld(t, serverFor(t, tls, mux), gateway.Intercepted{TLS: tls, Name: "localhost"}, intercept.Config{})
		client := connect.NewClient[text, text](w.client(true), w.url("/echo.Echo/Chat"), connect.WithGRPC())
		s := client.CallBidiStream(t.Context())
		for _, say := range []string{"one", "two", "three"} {
			require.NoError(t, s.Send(wrapperspb.String(say)))
			heard, err := s.Receive()
			require.NoError(t, err)
			require.Equal(t, say, heard.GetValue(), "each is answered before the next is sent")
		}
		require.NoError(t, s.CloseRequest())
		_, err := s.Receive()
		require.Equal(t, connect.CodeAborted, connect.CodeOf(err), "the status is a trailer")
		require.ErrorContains(t, err, "that is all")
		require.Equal(t, "/echo.Echo/Chat", w.lastJudged().Path)

		w.judge = denies(gateway.Decision{Reason: "no"})
		s = client.CallBidiStream(t.Context())
		_ = s.Send(wrapperspb.String("one"))
		_, err = s.Receive()
		require.Equal(t, connect.CodePermissionDenied, connect.CodeOf(err))
	}
}
