package replace_test

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/replace"
)

func pairs(texts ...string) (all []replace.Pair) {
	for i := 0; i < len(texts); i += 2 {
		all = append(all, replace.Pair{Old: []byte(texts[i]), New: []byte(texts[i+1])})
	}
	return all
}

// naive is what a Replacer is to do, at every place by trying all.
func naive(in string, all []replace.Pair) string {
	var out strings.Builder
	for in != "" {
		best := replace.Pair{}
		for _, p := range all {
			if len(p.Old) > len(best.Old) && strings.HasPrefix(in, string(p.Old)) {
				best = p
			}
		}
		if len(best.Old) == 0 {
			out.WriteByte(in[0])
			in = in[1:]
			continue
		}
		out.Write(best.New)
		in = in[len(best.Old):]
	}
	return out.String()
}

var cases = []struct {
	name     string
	pairs    []replace.Pair
	in, want string
}{
	{"nothing to replace", nil, "abc", "abc"},
	{"nothing found", pairs("x", "y"), "abc", "abc"},
	{"empty input", pairs("x", "y"), "", ""},
	{"whole", pairs("abc", "-"), "abc", "-"},
	{"one byte", pairs("b", "xyz"), "abcb", "axyzcxyz"},
	{"to nothing", pairs("b", ""), "abbbc", "ac"},
	{"begins again within itself", pairs("aab", "-"), "aaab", "a-"},
	{"does not overlap itself", pairs("aa", "-"), "aaaaa", "--a"},
	{"longest at a place", pairs("ab", "1", "abcd", "2"), "abcd abc ab", "2 1c 1"},
	{"first before longest", pairs("abc", "1", "bcdefg", "2"), "abcdefg", "1defg"},
	{"what was put in is let alone", pairs("a", "b", "b", "c"), "ab", "bc"},
	{"beginning at the end", pairs("secret", "-"), "a secre", "a secre"},
	{"shorter one within a longer that does not come", pairs("abcdef", "1", "bc", "2"), "abcdeX", "a2deX"},
	{"empty ones are left out", pairs("", "x", "a", "b"), "aa", "bb"},
	{"bytes that are no text", pairs("\xff\x00", "-"), "a\xff\xff\x00b", "a\xff-b"},
}

func TestReplace(t *testing.T) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			r := replace.New(c.pairs...)
			require.Equal(t, c.want, string(r.Bytes([]byte(c.in))))
			require.Equal(t, c.want, r.String(c.in))
			for _, src := range []io.Reader{
				strings.NewReader(c.in),
				iotest.OneByteReader(strings.NewReader(c.in)),
				iotest.DataErrReader(strings.NewReader(c.in)),
				iotest.HalfReader(strings.NewReader(c.in)),
			} {
				got, err := io.ReadAll(iotest.OneByteReader(r.Reader(src)))
				require.NoError(t, err)
				require.Equal(t, c.want, string(got))
			}
		})
	}
}

func TestReaderPassesErrorsOnAfterWhatCameBefore(t *testing.T) {
	src := io.MultiReader(strings.NewReader("a secr"), iotest.ErrReader(io.ErrUnexpectedEOF))
	got, err := io.ReadAll(replace.New(pairs("secret", "-")...).Reader(src))
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.Equal(t, "a secr", string(got))
}

func TestNilReplacesNothing(t *testing.T) {
	var r *replace.Replacer
	require.Equal(t, "a", r.String("a"))
	src := strings.NewReader("a")
	require.Same(t, src, r.Reader(src))
}

func TestReplacementsAreTold(t *testing.T) {
	count := map[int]int{}
	r := replace.New(pairs("abc", "1", "", "2", "de", "3")...).Notify(func(pair int) { count[pair]++ })
	_, err := io.ReadAll(r.Reader(iotest.OneByteReader(strings.NewReader("abcdeabc"))))
	require.NoError(t, err)
	r.String("de")
	require.Equal(t, map[int]int{0: 2, 2: 2}, count)
}

// A peer that waits for an answer to what it sent must not wait for a byte that was
// kept back.
func TestShortBeginningIsLetThrough(t *testing.T) {
	in, feed := io.Pipe()
	out := replace.New(pairs("secret-value-1", "[it]")...).Reader(in)
	read := make([]byte, 64)
	go feed.Write([]byte("yes"))
	require.Equal(t, "ye", string(read[:must(out.Read(read))(t)]), "what cannot be a beginning comes at once")
	require.Equal(t, "s", string(read[:must(out.Read(read))(t)]))
	go func() {
		feed.Write([]byte("ecret-value-1."))
		feed.Close()
	}()
	rest, err := io.ReadAll(out)
	require.NoError(t, err)
	require.Equal(t, "[it].", string(rest), "the rest of it is replaced")
}

func TestLongBeginningIsKept(t *testing.T) {
	for _, patterns := range [][]replace.Pair{
		pairs("secret-value-1", "[it]"),
		pairs("secr", "[short]", strings.Repeat("secr", 10), "[long]"),     // all of a shorter one is there
		pairs("ecret", "[within]", "secret"+strings.Repeat("-", 30), "[]"), // and here within
	} {
		in, feed := io.Pipe()
		out := replace.New(patterns...).Reader(in)
		got := make(chan string, 1)
		go func() {
			all, _ := io.ReadAll(out)
			got <- string(all)
		}()
		feed.Write([]byte("secr"))
		time.Sleep(300 * time.Millisecond) // longer than anything is kept back
		feed.Write([]byte("et-value-1"))
		feed.Close()
		require.Equal(t, naive("secret-value-1", patterns), <-got)
	}
}

func must(n int, err error) func(*testing.T) int {
	return func(t *testing.T) int {
		require.NoError(t, err)
		return n
	}
}

func FuzzReplace(f *testing.F) {
	f.Add("abc", "1", "bcd", "2", "abcdabcd", uint8(3))
	f.Add("aa", "", "aaa", "xaax", "aaaaaaa", uint8(1))
	f.Fuzz(func(t *testing.T, old1, new1, old2, new2, in string, step uint8) {
		one := pairs(old1, new1)
		if old1 != "" {
			require.Equal(t, strings.ReplaceAll(in, old1, new1), replace.New(one...).String(in))
		}
		both := pairs(old1, new1, old2, new2)
		r := replace.New(both...)
		want := naive(in, both)
		require.Equal(t, want, string(r.Bytes([]byte(in))))
		got, err := io.ReadAll(r.Reader(stepReader{bytes.NewReader([]byte(in)), int(step)%7 + 1}))
		require.NoError(t, err)
		require.Equal(t, want, string(got))
	})
}

type stepReader struct {
	io.Reader
	step int
}

func (s stepReader) Read(p []byte) (int, error) { return s.Reader.Read(p[:min(s.step, len(p))]) }

func BenchmarkReader(b *testing.B) {
	text := bytes.Repeat([]byte("Some words as they stand in an answer, since such are seldom secret.\n"), 1<<14)
	for _, n := range []int{1, 10, 100} {
		b.Run(fmt.Sprintf("patterns=%d", n), func(b *testing.B) {
			var all []replace.Pair
			for i := range n {
				all = append(all, replace.Pair{Old: fmt.Appendf(nil, "sk-%03d-abcdefghijklmnopqrstuvwxyz", i), New: []byte("x")})
			}
			r := replace.New(all...)
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				io.Copy(io.Discard, struct{ io.Reader }{r.Reader(bytes.NewReader(text))})
			}
		})
	}
}
