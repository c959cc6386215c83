package edge

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// Browsers set no header of their own on pages and WebSockets. So a person opens
// a private port by its name and ?e2b-traffic-access-token=TOKEN once: the edge
// keeps the token in a cookie for that name and takes it out of the address.

// trafficTokenName is the query parameter and the cookie.
const trafficTokenName = "e2b-traffic-access-token"

// trafficTokens are those a request brings, the best first. A cookie counts only
// for requests that the sandbox's own pages make, or the person: every sandbox
// has a name beside this one, whose pages must not act with it.
func trafficTokens(r *http.Request, t target) []string {
	if given := r.Header.Get(trafficTokenHeader); given != "" {
		return []string{given}
	}
	if !t.byName() || !isOwnRequest(r) {
		return nil
	}
	var all []string
	for _, cookie := range r.CookiesNamed(trafficTokenName) {
		all = append(all, cookie.Value) // a page beside this one may have set more
	}
	return all
}

// isOwnRequest tells requests of a page of the same origin and of the person from
// those of other pages. Browsers say so on https and on localhost; on WebSockets
// some send the origin only.
func isOwnRequest(r *http.Request) bool {
	switch r.Header.Get("Sec-Fetch-Site") {
	case "same-origin", "none":
		return true
	case "":
		origin, err := url.Parse(r.Header.Get("Origin"))
		return err == nil && origin.Host != "" && strings.EqualFold(origin.Host, r.Host)
	}
	return false
}

// takeToken answers a request that brings the right token in its URL: with a
// cookie, and the way to the same URL without it.
func takeToken(w http.ResponseWriter, r *http.Request, t target, token string) bool {
	if !t.byName() || r.Method != http.MethodGet || !strings.Contains(r.URL.RawQuery, trafficTokenName) {
		return false
	}
	query := r.URL.Query()
	if !same(query.Get(trafficTokenName), token) {
		return false
	}
	query.Del(trafficTokenName)
	// From the root and with one slash: it cannot lead to another host.
	to := "/" + strings.TrimLeft(r.URL.EscapedPath(), "/")
	if len(query) > 0 {
		to += "?" + query.Encode()
	}
	http.SetCookie(w, &http.Cookie{
		Name: trafficTokenName, Value: token, Path: "/",
		HttpOnly: true, Secure: r.TLS != nil, SameSite: http.SameSiteStrictMode,
	})
	h := w.Header()
	h.Set("Location", to)
	h.Set("Cache-Control", "no-store")
	h.Set("Referrer-Policy", "no-referrer")
	w.WriteHeader(http.StatusSeeOther)
	return true
}

// dropToken takes the edge's own cookie out of what a sandbox sees.
func dropToken(h http.Header) {
	lines, ok := h["Cookie"]
	if !ok {
		return
	}
	var kept []string
	for _, line := range lines {
		pairs := slices.DeleteFunc(strings.Split(line, ";"), func(pair string) bool {
			name, _, _ := strings.Cut(strings.TrimSpace(pair), "=")
			return name == trafficTokenName
		})
		if line = strings.TrimSpace(strings.Join(pairs, ";")); line != "" {
			kept = append(kept, line)
		}
	}
	if h["Cookie"] = kept; kept == nil {
		delete(h, "Cookie")
	}
}
