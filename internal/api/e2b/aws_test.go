package e2b

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAmazonIsAskedForAPassword(t *testing.T) {
	var got *http.Request
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r
		w.Write([]byte(`{"authorizationData":[{"authorizationToken":"QVdTOnNlY3JldDp4"}]}`)) // AWS:secret:x
	}))
	defer server.Close()
	keys := &imageRegistry{AWSRegion: "eu-central-1", AWSAccessKeyID: "AKID", AWSSecretAccessKey: "SECRET"}
	request, err := awsRequest(t.Context(), server.URL+"/", keys, time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	require.NoError(t, err)
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	response.Body.Close()
	require.Equal(t, "AmazonEC2ContainerRegistry_V20150921.GetAuthorizationToken", got.Header.Get("X-Amz-Target"))
	require.Equal(t, "20260102T030405Z", got.Header.Get("X-Amz-Date"))
	require.Contains(t, got.Header.Get("Authorization"), "Credential=AKID/20260102/eu-central-1/ecr/aws4_request")
}

func TestAmazonsPasswordIsRead(t *testing.T) {
	login, err := readAWSToken([]byte(`{"authorizationData":[{"authorizationToken":"QVdTOnNlY3JldDp4"}]}`))
	require.NoError(t, err)
	require.Equal(t, "AWS", login.User)
	require.Equal(t, "secret:x", login.Password)
	for _, text := range []string{"", "{}", `{"authorizationData":[{"authorizationToken":"!"}]}`, `{"authorizationData":[{"authorizationToken":"QQ=="}]}`} {
		_, err := readAWSToken([]byte(text))
		require.Error(t, err, text)
	}
	_, err = awsLogin(t.Context(), &imageRegistry{AWSRegion: "evil.example.com/#", AWSAccessKeyID: "a", AWSSecretAccessKey: "b"})
	require.ErrorContains(t, err, "awsRegion")
}
