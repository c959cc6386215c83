package e2b

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tombolo-dev/tombolo/internal/api/record"
	"github.com/tombolo-dev/tombolo/internal/build"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/store"
)

// buildRoutes are the endpoints that build templates. Those of v3 request a build,
// those of v2 start it; the older ones take the same in other shapes.
func (a *api) buildRoutes() map[string]handler {
	return map[string]handler{
		"POST /v3/templates":                        a.requestBuild,
		"POST /v2/templates":                        a.requestBuild,
		"GET /templates/{id}/files/{hash}":          a.uploadLink,
		"POST /v2/templates/{id}/builds/{build}":    a.startBuild,
		"GET /templates/{id}/builds/{build}/status": a.buildStatus,
		"GET /templates/{id}/builds/{build}/logs":   a.buildLogs,
		"POST /templates":                           a.requestDockerfileBuild,
		"POST /templates/{id}":                      a.requestDockerfileBuild,
		"POST /templates/{id}/builds/{build}":       a.startDockerfileBuild,
	}
}

// buildRequest is the body of v3; v2 knew alias only.
type buildRequest struct {
	Name          string   `json:"name"`
	Alias         string   `json:"alias"`
	Tags          []string `json:"tags"`
	CPUCount      int      `json:"cpuCount"`
	MemoryMB      int64    `json:"memoryMB"`
	MinFreeDiskMB int64    `json:"minFreeDiskMb"`
}

type wireBuildRequest struct {
	TemplateID string   `json:"templateID"`
	BuildID    string   `json:"buildID"`
	Public     bool     `json:"public"`
	Names      []string `json:"names"`
	Aliases    []string `json:"aliases"`
	Tags       []string `json:"tags"`
}

func (a *api) requestBuild(w http.ResponseWriter, r *http.Request, k store.Key) error {
	var body buildRequest
	if err := decode(w, r, &body, false); err != nil {
		return err
	}
	answer, err := a.newBuild(r, k, body)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusAccepted, answer)
	return nil
}

// newBuild notes a build for the name in a request.
func (a *api) newBuild(r *http.Request, k store.Key, body buildRequest) (wireBuildRequest, error) {
	if body.Name == "" {
		body.Name = body.Alias
	}
	if body.Name == "" {
		return wireBuildRequest{}, invalid("name is missing: give the template a name")
	}
	alias, tags, err := buildName(k, body.Name, body.Tags)
	if err != nil {
		return wireBuildRequest{}, err
	}
	if body.CPUCount < 0 || body.MemoryMB < 0 || body.MinFreeDiskMB < 0 || body.MemoryMB > maxMiB || body.MinFreeDiskMB > maxMiB {
		return wireBuildRequest{}, invalid("cpuCount, memoryMB and minFreeDiskMb must be positive and below %d", maxMiB)
	}
	disk := body.MinFreeDiskMB << 20
	if disk > 0 { // it says the least
		disk = max(disk, build.DefaultDiskOf(sandbox.QuotaOf(k)))
	}
	b, err := a.builds.Request(r.Context(), build.Request{
		KeyID: k.ID, Alias: alias, Tags: tags, Quota: sandbox.QuotaOf(k),
		CPUs: body.CPUCount, MemoryBytes: body.MemoryMB << 20, DiskBytes: disk,
	})
	if err != nil {
		return wireBuildRequest{}, buildFailure(err, body.Name)
	}
	record.Note(r.Context(), "template", b.TemplateID)
	record.Note(r.Context(), "build", b.ID)
	answer := wireBuildRequest{
		TemplateID: b.TemplateID, BuildID: b.ID, Tags: b.Tags,
		Names: []string{namespace(k) + "/" + alias}, Aliases: []string{alias},
	}
	if t, err := a.store.Template(r.Context(), b.TemplateID); err == nil {
		answer.Public = t.Public
	}
	return answer, nil
}

// maxMiB keeps numbers from overflowing; the real limits are far below.
const maxMiB = 1 << 30

// buildName takes a name with an optional tag, and more tags, apart.
func buildName(k store.Key, name string, more []string) (alias string, tags []string, err error) {
	n, ok := splitName(k, name)
	if !ok {
		return "", nil, invalid("name %.140q: a namespace before the '/' must be that of the key, which is %q; leave it out", name, namespace(k))
	}
	if err := notReserved(n.Alias); err != nil {
		return "", nil, err
	}
	if tagged(name) {
		tags = append(tags, n.Tag)
	}
	for _, tag := range more {
		tags = append(tags, strings.ToLower(tag))
	}
	if len(tags) == 0 {
		tags = []string{store.DefaultTag}
	}
	for _, tag := range tags {
		if err := (store.TemplateName{Alias: n.Alias, Tag: tag}).Check(); err != nil {
			return "", nil, invalid("%s", err)
		}
	}
	slices.Sort(tags)
	return n.Alias, slices.Compact(tags), nil
}

// uploadTime is how long an upload link can be used, and an upload may take, as
// the clients' own limit.
const uploadTime = time.Hour

type wireUpload struct {
	Present bool   `json:"present"`
	URL     string `json:"url,omitempty"`
}

// uploadLink answers where files are to be sent to. The link is signed: clients
// send no key with the files.
func (a *api) uploadLink(w http.ResponseWriter, r *http.Request, k store.Key) error {
	hash := r.PathValue("hash")
	if !uploadHash(hash) {
		return invalid("%.80q is not a hash of files: 64 hex digits are", hash)
	}
	until := strconv.FormatInt(time.Now().Add(uploadTime).Unix(), 10)
	link := url.URL{Scheme: scheme(r), Host: r.Host, Path: uploadPrefix + k.ID + "/" + hash}
	link.RawQuery = url.Values{"until": {until}, "signature": {a.signUpload(k.ID, hash, until)}}.Encode()
	writeJSON(w, http.StatusCreated, wireUpload{Present: a.builds.HasUpload(k.ID, hash), URL: link.String()})
	return nil
}

// scheme is the one the client used; a proxy in front says so.
func scheme(r *http.Request) string {
	if r.TLS != nil || r.Header.Get("X-Forwarded-Proto") == "https" {
		return "https"
	}
	return "http"
}

const uploadPrefix = "/uploads/"

func uploadHash(hash string) bool {
	raw, err := hex.DecodeString(hash)
	return err == nil && len(raw) == sha256.Size && hash == strings.ToLower(hash)
}

func (a *api) signUpload(parts ...string) string {
	mac := hmac.New(sha256.New, a.uploadSecret)
	mac.Write([]byte(strings.Join(parts, "\n")))
	return hex.EncodeToString(mac.Sum(nil))
}

// upload takes an archive by a signed link.
func (a *api) upload(w http.ResponseWriter, r *http.Request) error {
	keyID, hash, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, uploadPrefix), "/")
	until := r.URL.Query().Get("until")
	want := a.signUpload(keyID, hash, until)
	if !hmac.Equal([]byte(want), []byte(r.URL.Query().Get("signature"))) {
		return failure(http.StatusForbidden, "the signature of the upload link is wrong: ask for a new link")
	}
	record.Caller(r.Context(), "key:"+keyID, keyID)
	record.Note(r.Context(), "hash", hash)
	end, err := strconv.ParseInt(until, 10, 64)
	if err != nil || time.Now().Unix() > end {
		return failure(http.StatusForbidden, "the upload link is too old: ask for a new one")
	}
	keys, err := a.store.Keys(r.Context())
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(keys, func(k store.Key) bool { return k.ID == keyID }) {
		return failure(http.StatusForbidden, "the key of the upload link was deleted: ask for a new link with another key")
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(uploadTime))
	defer http.NewResponseController(w).SetReadDeadline(time.Time{})
	if r.ContentLength > build.MaxUpload {
		return failure(http.StatusRequestEntityTooLarge, "%s", build.ErrTooLarge)
	}
	if err := a.builds.Upload(r.Context(), keyID, hash, r.Body); err != nil {
		return uploadFailure(err)
	}
	w.WriteHeader(http.StatusOK)
	return nil
}

// uploadFailure puts the errors of uploads into the dialect's.
func uploadFailure(err error) error {
	if errors.Is(err, build.ErrTooLarge) {
		return failure(http.StatusRequestEntityTooLarge, "%s", build.ErrTooLarge)
	}
	for _, full := range []error{build.ErrFull, build.ErrUploads} {
		if errors.Is(err, full) {
			return failure(http.StatusInsufficientStorage, "%s", full)
		}
	}
	return err
}

// buildStart is the body that starts a build.
type buildStart struct {
	FromImage         string         `json:"fromImage"`
	FromTemplate      string         `json:"fromTemplate"`
	FromImageRegistry *imageRegistry `json:"fromImageRegistry"`
	Force             bool           `json:"force"`
	Steps             []buildStep    `json:"steps"`
	StartCmd          string         `json:"startCmd"`
	ReadyCmd          string         `json:"readyCmd"`
}

type buildStep struct {
	Type      string   `json:"type"`
	Args      []string `json:"args"`
	FilesHash string   `json:"filesHash"`
	Force     bool     `json:"force"`
}

func (a *api) startBuild(w http.ResponseWriter, r *http.Request, k store.Key) error {
	b, err := a.ownBuild(r, k)
	if err != nil {
		return err
	}
	var body buildStart
	if err := decode(w, r, &body, false); err != nil {
		return err
	}
	plan, err := a.plan(r.Context(), k, body)
	if err != nil {
		return err
	}
	if err := a.builds.Start(r.Context(), b.ID, plan); err != nil {
		return buildFailure(err, b.Alias)
	}
	w.WriteHeader(http.StatusAccepted)
	return nil
}

// ownBuild finds the build that a path names, of the caller's key.
func (a *api) ownBuild(r *http.Request, k store.Key) (store.Build, error) {
	id := r.PathValue("build")
	b, err := a.builds.Get(r.Context(), id)
	if err == nil && b.KeyID != k.ID {
		err = build.ErrNotFound
	}
	if errors.Is(err, build.ErrNotFound) {
		return b, failure(http.StatusNotFound, "build '%.64s' not found", id)
	}
	return b, err
}

// buildFailure puts the errors of builds into the dialect's.
func buildFailure(err error, name string) error {
	switch {
	case errors.Is(err, store.ErrExists):
		return failure(http.StatusForbidden, "the name %.140q belongs to a template of somebody else: choose another", name)
	case errors.Is(err, build.ErrTooMany):
		e := failure(http.StatusTooManyRequests, "%s", err)
		e.noRetry = true
		return e
	case errors.Is(err, build.ErrStarted):
		return failure(http.StatusConflict, "%s", err)
	case errors.Is(err, build.ErrNotFound):
		return failure(http.StatusNotFound, "%s", err)
	}
	return err
}

type buildEntry struct {
	Timestamp time.Time `json:"timestamp"`
	Level     string    `json:"level"`
	Message   string    `json:"message"`
	Step      string    `json:"step,omitempty"`
}

func encodeEntries(entries []build.Entry) []buildEntry {
	list := make([]buildEntry, len(entries))
	for i, e := range entries {
		list[i] = buildEntry{e.At, e.Level, e.Message, e.Step}
	}
	return list
}

type wireBuildStatus struct {
	TemplateID string       `json:"templateID"`
	BuildID    string       `json:"buildID"`
	Status     string       `json:"status"`
	Logs       []string     `json:"logs"`
	LogEntries []buildEntry `json:"logEntries"`
	Reason     *buildReason `json:"reason,omitempty"`
}

type buildReason struct {
	Message    string       `json:"message"`
	Step       string       `json:"step,omitempty"`
	LogEntries []buildEntry `json:"logEntries"`
}

// maxEntries is the most, and the default, of log entries in one answer.
const maxEntries = 100

func (a *api) buildStatus(w http.ResponseWriter, r *http.Request, k store.Key) error {
	b, err := a.ownBuild(r, k)
	if err != nil {
		return err
	}
	offset, err := number(r, "logsOffset", 0, 0, 1<<31)
	if err != nil {
		return err
	}
	limit, err := number(r, "limit", maxEntries, 0, maxEntries)
	if err != nil {
		return err
	}
	entries, err := a.entries(b.ID, r.URL.Query().Get("level"))
	if err != nil {
		return err
	}
	page := entries[min(offset, len(entries)):min(offset+limit, len(entries))]
	answer := wireBuildStatus{
		TemplateID: b.TemplateID, BuildID: b.ID, Status: string(b.State),
		Logs: []string{}, LogEntries: encodeEntries(page),
	}
	for _, e := range page {
		answer.Logs = append(answer.Logs, e.Message)
	}
	if b.State == store.BuildError {
		answer.Reason = &buildReason{Message: b.Reason, Step: b.Step, LogEntries: encodeEntries(ofStep(entries, b.Step))}
	}
	writeJSON(w, http.StatusOK, answer)
	return nil
}

// ofStep are the last entries of a step.
func ofStep(entries []build.Entry, step string) []build.Entry {
	var list []build.Entry
	for _, e := range entries {
		if e.Step == step {
			list = append(list, e)
		}
	}
	return list[max(0, len(list)-maxEntries):]
}

// entries are those of a build's log that are of a level or worse; empty is all.
func (a *api) entries(id, level string) ([]build.Entry, error) {
	least := slices.Index(levels, level)
	if level != "" && least < 0 {
		return nil, invalid("level must be one of %s", strings.Join(levels, ", "))
	}
	entries, err := a.builds.Log(id)
	if err != nil || least <= 0 {
		return entries, err
	}
	return slices.DeleteFunc(slices.Clone(entries), func(e build.Entry) bool { return slices.Index(levels, e.Level) < least }), nil
}

// buildLogs answers the log by itself: from a moment (cursor, unix milliseconds)
// forward, or before it backward.
func (a *api) buildLogs(w http.ResponseWriter, r *http.Request, k store.Key) error {
	b, err := a.ownBuild(r, k)
	if err != nil {
		return err
	}
	q := r.URL.Query()
	limit, err := number(r, "limit", maxEntries, 0, maxEntries)
	if err != nil {
		return err
	}
	cursor, err := parseMillis("cursor", q.Get("cursor"))
	if err != nil {
		return err
	}
	entries, err := a.entries(b.ID, q.Get("level"))
	if err != nil {
		return err
	}
	entries = slices.Clone(entries)
	switch q.Get("direction") {
	case "", "forward":
		entries = slices.DeleteFunc(entries, func(e build.Entry) bool { return e.At.Before(cursor) })
	case "backward":
		if !cursor.IsZero() {
			entries = slices.DeleteFunc(entries, func(e build.Entry) bool { return e.At.After(cursor) })
		}
		slices.Reverse(entries)
	default:
		return invalid("direction must be forward or backward")
	}
	writeJSON(w, http.StatusOK, struct {
		Logs []buildEntry `json:"logs"`
	}{encodeEntries(entries[:min(limit, len(entries))])})
	return nil
}

// number reads a whole number of the query.
func number(r *http.Request, name string, absent, least, most int) (int, error) {
	text := r.URL.Query().Get(name)
	if text == "" {
		return absent, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < least || n > most {
		return 0, invalid("%s must be a whole number from %d to %d, not %.40q", name, least, most, text)
	}
	return n, nil
}

// requestDockerfileBuild is the first step of the oldest flow, in which clients
// pushed an image they had built. Here the Dockerfile they send is built, which
// is possible as long as it copies no files of theirs.
func (a *api) requestDockerfileBuild(w http.ResponseWriter, r *http.Request, k store.Key) error {
	var body struct {
		buildRequest
		Dockerfile string `json:"dockerfile"`
		StartCmd   string `json:"startCmd"`
		ReadyCmd   string `json:"readyCmd"`
	}
	if err := decode(w, r, &body, false); err != nil {
		return err
	}
	if id := r.PathValue("id"); id != "" && body.Alias == "" {
		t, err := a.store.Template(r.Context(), id)
		if err != nil || t.KeyID != k.ID || t.Name == "" {
			return failure(http.StatusNotFound, "template '%.64s' not found", id)
		}
		body.Alias = t.Name
	}
	read, err := build.ParseDockerfile(body.Dockerfile, build.DockerfileOptions{})
	if err != nil {
		return invalid("%s", err)
	}
	if err := a.builds.UploadAll(r.Context(), k.ID, read.Uploads); err != nil {
		return uploadFailure(err)
	}
	plan := read.Plan
	if body.StartCmd != "" || body.ReadyCmd != "" {
		plan.StartCmd, plan.ReadyCmd = body.StartCmd, body.ReadyCmd
	}
	answer, err := a.newBuild(r, k, body.buildRequest)
	if err != nil {
		return err
	}
	a.prepared.keep(k.ID, answer.BuildID, plan)
	writeJSON(w, http.StatusAccepted, answer)
	return nil
}

// startDockerfileBuild is the second step of the oldest flow.
func (a *api) startDockerfileBuild(w http.ResponseWriter, r *http.Request, k store.Key) error {
	b, err := a.ownBuild(r, k)
	if err != nil {
		return err
	}
	plan, ok := a.prepared.take(k.ID, b.ID)
	if !ok {
		return failure(http.StatusConflict, "the build was requested in another way, or too long ago: request it again")
	}
	if err := a.builds.Start(r.Context(), b.ID, plan); err != nil {
		return buildFailure(err, b.Alias)
	}
	w.WriteHeader(http.StatusAccepted)
	return nil
}

// stepError names the step a mistake is in.
func stepError(i int, format string, args ...any) error {
	return invalid("step %d: %s", i+1, fmt.Sprintf(format, args...))
}
