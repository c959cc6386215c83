package files

import (
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func FuzzVerify(f *testing.F) {
	f.Add("path=/f&signature=v1_x&signature_expiration=1")
	f.Add("signature=" + sign("/f", read, "u", "t", "9") + "&path=/f&username=u&signature_expiration=9")
	f.Fuzz(func(t *testing.T, query string) {
		q, err := url.ParseQuery(query)
		if err != nil {
			return
		}
		err = verify(q, read, "token nobody knows", time.Unix(0, 0))
		require.Error(t, err, "a signature was guessed")
		require.Equal(t, http.StatusUnauthorized, statusOf(err))
	})
}

func FuzzFileName(f *testing.F) {
	f.Add(`form-data; name="file"; filename="/home/user/a b.txt"`)
	f.Add(`form-data; name=file; filename*=UTF-8''%e2%82%ac`)
	f.Add(`form-data; filename="\`)
	f.Fuzz(func(t *testing.T, disposition string) {
		name, err := fileName(disposition)
		if err != nil {
			require.Equal(t, http.StatusBadRequest, statusOf(err))
			return
		}
		require.NotEmpty(t, name)
	})
}

func FuzzMetadata(f *testing.F) {
	f.Add("X-Metadata-Author", "ada", "x-metadata-", "\xff")
	f.Fuzz(func(t *testing.T, name1, value1, name2, value2 string) {
		found, err := metadataOf(http.Header{name1: {value1}, name2: {value2}})
		if err != nil {
			require.Equal(t, http.StatusBadRequest, statusOf(err))
			return
		}
		total := 0
		for key, value := range found {
			require.True(t, printable(key) && printable(value))
			require.LessOrEqual(t, len(key), metadataKeyLimit)
			total += len(key) + len(value)
		}
		require.LessOrEqual(t, total, metadataTotalLimit)
	})
}

func FuzzChooseGzip(f *testing.F) {
	f.Add("gzip;q=0.5, identity;q=0")
	f.Add("*;q=0")
	f.Fuzz(func(t *testing.T, header string) {
		_, err := chooseGzip([]string{header})
		if err != nil {
			require.Equal(t, http.StatusNotAcceptable, statusOf(err))
		}
	})
}

func TestChooseGzip(t *testing.T) {
	for header, want := range map[string]bool{
		"": false, "gzip": true, "GZIP": true, "gzip;q=0": false, "gzip, identity": true,
		"gzip, deflate": false, "br": false, "identity": false, "*": false,
		"identity;q=0, gzip": true, "identity;q=0, *": true, "gzip, br, identity;q=0": true, "*;q=0, gzip": true,
	} {
		got, err := chooseGzip([]string{header})
		require.NoError(t, err, header)
		require.Equal(t, want, got, header)
	}
	for _, header := range []string{"*;q=0", "identity;q=0", "br, identity;q=0", "gzip;q=0, identity;q=0"} {
		_, err := chooseGzip([]string{header})
		require.Error(t, err, header)
	}
}
