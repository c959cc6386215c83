// Package storetest is the contract of store.Store as tests. Every
// implementation runs it.
package storetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/store"
)

// Run checks an implementation. open returns a new empty store and closes it
// when the test ends.
func Run(t *testing.T, open func(t *testing.T) store.Store) {
	tests := []struct {
		name string
		run  func(t *testing.T, s store.Store)
	}{
		{"KeyIsFoundByTheHashOfItsSecret", keyIsFoundByHash},
		{"KeyNamesAreUnique", keyNamesAreUnique},
		{"KeyUseIsNotedCoarsely", keyUseIsNotedCoarsely},
		{"DeletedKeyIsGone", deletedKeyIsGone},
		{"KeyLimitsChangeAtOnce", keyLimitsChangeAtOnce},
		{"KeyIsFoundByIDBeforeName", keyIsFoundByIDBeforeName},
		{"KeyHasRoles", keyHasRoles},
		{"SandboxIsReadBackAsWritten", sandboxIsReadBackAsWritten},
		{"SandboxesAreListedByWhetherTheyEnded", sandboxesAreListed},
		{"PruneTakesOldAndSurplusEndedOnes", pruneTakesOldAndSurplus},
		{"TemplateIsFoundByEachOfItsRefs", templateIsFound},
		{"NamelessTemplatesAreApart", namelessTemplatesAreApart},
		{"NewBuildReplacesTheOneItsTagPointedAt", newBuildReplacesOldOne},
		{"BuildsOfOneTemplateShareIDAndOwner", buildsShareTheirTemplate},
		{"SameBuildIsReplacedInPlace", sameBuildIsReplaced},
		{"AliasAndIDBelongToOneTemplateOfOneKey", aliasBelongsToOneKey},
		{"TagsMoveBetweenBuilds", tagsMove},
		{"TagsAreTakenOff", tagsAreTakenOff},
		{"TagsOfATemplateAreLimited", tagsAreLimited},
		{"PublicIsOfTheWholeTemplate", publicIsOfTheTemplate},
		{"DeleteTakesATemplateATagOrABuild", deleteTakesWhatIsMeant},
		{"DeletedTemplateTakesItsBuildRecordsAlong", deletedTemplateTakesBuilds},
		{"TaggersDoNotLoseABuild", taggersDoNotLoseABuild},
		{"BuildIsReadBackAsWritten", buildIsReadBackAsWritten},
		{"BuildsOfOneAliasShareATemplateID", buildsShareATemplateID},
		{"AliasIsReservedWhileItIsBuilt", aliasIsReserved},
		{"TwoBuildsOfANewAliasAtOnceShareATemplateID", racingBuildsShareATemplateID},
		{"BuildsAreListed", buildsAreListed},
		{"PruneSparesBuildsUnderWay", pruneSparesBuildsUnderWay},
		{"ABuildWhoseRecordIsGoneMakesNoTemplate", buildWithoutRecordMakesNoTemplate},
		{"ARefreshMovesNoTag", refreshMovesNoTag},
		{"VolumeIsFoundByIDAndName", volumeIsFound},
		{"VolumesOfAKeyAreLimited", volumesAreLimited},
		{"VolumeNameIsTakenOnce", volumeNameIsTakenOnce},
		{"SecretIsFoundByIDAndName", secretIsFound},
		{"SecretIsReadBackAsWritten", secretIsReadBackAsWritten},
		{"SecretsOfAKeyAreLimited", secretsAreLimited},
		{"SecretChangesAtOnce", secretChangesAtOnce},
		{"EveryChangeOfASecretIsCounted", secretChangesAreCounted},
		{"DeletedKeyTakesItsSecretsAlong", deletedKeyTakesSecrets},
		{"EventsAreListedByKeySandboxAndKind", eventsAreListed},
		{"EventIsReadBackAsWritten", eventIsReadBackAsWritten},
		{"PruneKeepsTheNewestEventsOfEachKey", pruneKeepsNewestEvents},
		{"EventIsQueuedForTheWebhooksThatWantIt", eventIsQueued},
		{"WebhookIsReadBackAsWritten", webhookIsReadBackAsWritten},
		{"WebhooksOfAKeyAreLimited", webhooksAreLimited},
		{"DeletedKeyTakesItsWebhooksAlong", deletedKeyTakesWebhooks},
		{"DeliveryAndWebhookChangeTogether", deliveryAndWebhookChangeTogether},
		{"DeliveriesOfOneSandboxWaitForEachOther", deliveriesKeepOrder},
		{"NoWebhookTakesTheTurnsOfAnother", noWebhookStarvesAnother},
		{"DeliveriesAreListedInPages", deliveriesAreListed},
		{"DeliveryOfAPrunedEventIsDropped", deliveryOfPrunedEventIsDropped},
		{"PruneSparesPendingDeliveries", pruneSparesPendingDeliveries},
		{"PolicyIsReadBackAsWritten", policyIsReadBackAsWritten},
		{"PoliciesAreListedByScope", policiesAreListedByScope},
		{"PoliciesAreReplacedTogether", policiesAreReplacedTogether},
		{"PoliciesGoWithWhatTheyHoldFor", policiesGoWithWhatTheyHoldFor},
		{"WebhookOfAllKeysGetsAllEvents", webhookOfAllKeysGetsAllEvents},
		{"HoldIsReadBackAsWritten", holdIsReadBackAsWritten},
		{"HoldsAreListed", holdsAreListed},
		{"HoldEndsOnceWithItsGrants", holdEndsOnceWithItsGrants},
		{"GrantIsTakenOnce", grantIsTakenOnce},
		{"GrantsGoWithTheirSandboxAndTime", grantsGoWithTheirSandboxAndTime},
		{"PruneSparesPendingHolds", pruneSparesPendingHolds},
		{"ChangesOfApprovalsAreSeen", changesOfApprovalsAreSeen},
		{"WritersDoNotLoseEachOthersWork", writersDoNotLoseWork},
		{"CancelledContextEndsACall", cancelledContextEndsACall},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { tt.run(t, open(t)) })
	}
}

// now is a time with nanoseconds and a zone, which a store normalises.
var now = time.Date(2026, 3, 4, 5, 6, 7, 123456789, time.FixedZone("", 3600))

// kept is what a store returns for now.
var kept = now.UTC().Truncate(time.Microsecond)

func keyIsFoundByHash(t *testing.T, s store.Store) {
	ctx := t.Context()
	k, secret := newKey(t, "ci")
	k.MaxTimeout = 2 * time.Hour
	k.MaxCreateRate, k.MaxCPUs, k.MaxMemory, k.MaxDisk, k.MaxSnapshots = 0.5, 8, 1<<40, 1<<41, 3
	require.NoError(t, s.AddKey(ctx, k))

	hash, err := store.HashSecret(secret)
	require.NoError(t, err)
	got, err := s.KeyByHash(ctx, hash)
	require.NoError(t, err)
	k.CreatedAt = kept
	requireEqual(t, k, got)

	_, err = s.KeyByHash(ctx, strings.Repeat("0", 64))
	require.ErrorIs(t, err, store.ErrNotFound)
}

func keyNamesAreUnique(t *testing.T, s store.Store) {
	first, _ := newKey(t, "ci")
	second, _ := newKey(t, "ci")
	require.NoError(t, s.AddKey(t.Context(), first))
	require.ErrorIs(t, s.AddKey(t.Context(), second), store.ErrExists)
	keys, err := s.Keys(t.Context())
	require.NoError(t, err)
	require.Len(t, keys, 1)
}

func keyUseIsNotedCoarsely(t *testing.T, s store.Store) {
	ctx := t.Context()
	k, _ := newKey(t, "ci")
	require.NoError(t, s.AddKey(ctx, k))
	lastUsed := func() time.Time {
		got, err := s.KeyByHash(ctx, k.Hash)
		require.NoError(t, err)
		return got.LastUsed
	}

	require.Zero(t, lastUsed(), "a new key was never used")
	require.NoError(t, s.TouchKey(ctx, k.ID, now))
	require.Equal(t, kept, lastUsed())
	require.NoError(t, s.TouchKey(ctx, k.ID, now.Add(store.TouchEvery/2)))
	require.Equal(t, kept, lastUsed(), "a use soon after changes nothing")
	require.NoError(t, s.TouchKey(ctx, k.ID, now.Add(store.TouchEvery)))
	require.Equal(t, kept.Add(store.TouchEvery), lastUsed())
	require.ErrorIs(t, s.TouchKey(ctx, "unknown", now), store.ErrNotFound)
}

func deletedKeyIsGone(t *testing.T, s store.Store) {
	ctx := t.Context()
	for _, name := range []string{"a", "b"} {
		k, _ := newKey(t, name)
		require.NoError(t, s.AddKey(ctx, k))
	}
	keys, err := s.Keys(ctx)
	require.NoError(t, err)
	require.Len(t, keys, 2)

	require.NoError(t, s.DeleteKey(ctx, "a"), "by name")
	other, err := s.Keys(ctx)
	require.NoError(t, err)
	require.Len(t, other, 1)
	require.NoError(t, s.DeleteKey(ctx, other[0].ID), "by id")
	require.ErrorIs(t, s.DeleteKey(ctx, "a"), store.ErrNotFound)
}

func keyLimitsChangeAtOnce(t *testing.T, s store.Store) {
	ctx := t.Context()
	k, _ := newKey(t, "ci")
	require.NoError(t, s.AddKey(ctx, k))
	other, _ := newKey(t, "other")
	require.NoError(t, s.AddKey(ctx, other))

	want := k
	want.CreatedAt = kept
	want.Name, want.MaxSandboxes, want.MaxTimeout = "cd", 7, time.Minute
	want.MaxCreateRate, want.MaxCPUs, want.MaxMemory, want.MaxDisk, want.MaxSnapshots = 2.5, 4, 1<<33, 1<<34, 5
	change := func(k *store.Key) error {
		*k = want
		k.ID, k.Hash, k.Prefix, k.CreatedAt = "other", "hash", "prefix", time.Time{} // stay as they are
		return nil
	}
	got, err := s.UpdateKey(ctx, "ci", change)
	require.NoError(t, err)
	requireEqual(t, want, got)
	got, err = s.KeyByHash(ctx, k.Hash)
	require.NoError(t, err)
	requireEqual(t, want, got)

	got, err = s.UpdateKey(ctx, k.ID, func(k *store.Key) error { k.MaxCPUs = 0; return nil })
	require.NoError(t, err)
	require.Zero(t, got.MaxCPUs)
	require.Equal(t, 7, got.MaxSandboxes)

	refused := errors.New("refused")
	_, err = s.UpdateKey(ctx, k.ID, func(k *store.Key) error { k.MaxCPUs = 99; return refused })
	require.ErrorIs(t, err, refused)
	got, err = s.KeyByHash(ctx, k.Hash)
	require.NoError(t, err)
	require.Zero(t, got.MaxCPUs, "a refused change changes nothing")

	_, err = s.UpdateKey(ctx, k.ID, func(k *store.Key) error { k.Name = "other"; return nil })
	require.ErrorIs(t, err, store.ErrExists)
	_, err = s.UpdateKey(ctx, "none", func(*store.Key) error { return nil })
	require.ErrorIs(t, err, store.ErrNotFound)
}

func keyHasRoles(t *testing.T, s store.Store) {
	ctx := t.Context()
	k, _ := newKey(t, "ci")
	require.Equal(t, []store.Role{store.RoleSandboxes}, k.Roles, "of a key that nothing was said about")
	require.NoError(t, s.AddKey(ctx, k))
	person, _ := newKey(t, "person")
	person.Roles, person.Approves = []store.Role{store.RoleApprove, store.RoleAudit}, []string{k.ID, "another"}
	require.NoError(t, s.AddKey(ctx, person))

	person.CreatedAt = kept
	got, err := s.KeyByHash(ctx, person.Hash)
	require.NoError(t, err)
	requireEqual(t, person, got)

	got, err = s.UpdateKey(ctx, "ci", func(k *store.Key) error {
		k.Roles, k.SelfApproval = []store.Role{store.RoleSandboxes, store.RoleApprove}, true
		return nil
	})
	require.NoError(t, err)
	k.CreatedAt, k.Roles, k.SelfApproval = kept, []store.Role{store.RoleSandboxes, store.RoleApprove}, true
	requireEqual(t, k, got)
	keys, err := s.Keys(ctx)
	require.NoError(t, err)
	require.ElementsMatch(t, []store.Key{k, person}, keys)
}

func keyIsFoundByIDBeforeName(t *testing.T, s store.Store) {
	ctx := t.Context()
	first, _ := newKey(t, "first")
	require.NoError(t, s.AddKey(ctx, first))
	imposter, _ := newKey(t, first.ID)
	require.NoError(t, s.AddKey(ctx, imposter))

	got, err := s.UpdateKey(ctx, first.ID, func(*store.Key) error { return nil })
	require.NoError(t, err)
	require.Equal(t, "first", got.Name)
	require.NoError(t, s.DeleteKey(ctx, first.ID))
	keys, err := s.Keys(ctx)
	require.NoError(t, err)
	require.Len(t, keys, 1)
	require.Equal(t, imposter.ID, keys[0].ID)
}

func sandboxIsReadBackAsWritten(t *testing.T, s store.Store) {
	ctx := t.Context()
	sb := store.Sandbox{
		ID: "i0001", State: "running", KeyID: "k", TemplateID: "t", TemplateName: "base", TemplateBuild: "b",
		CreatedAt: now, StartedAt: now, EndAt: now, CPUs: 2, MemoryBytes: 1 << 30, DiskBytes: 1 << 40,
		Metadata: map[string]string{"a/b": "ü\"'"}, EnvVars: map[string]string{"E": ""}, DenyInternet: true,
		AccessToken: "token",
		Data:        []byte(`{"tap":"t0"}`),
	}
	require.NoError(t, s.PutSandbox(ctx, sb))
	want := sb
	want.CreatedAt, want.StartedAt, want.EndAt = kept, kept, kept
	got, err := s.Sandbox(ctx, sb.ID)
	require.NoError(t, err)
	requireEqual(t, want, got)

	sb.State, sb.Reason, sb.EndedAt, sb.Metadata = "ended", "killed by its owner", now, nil
	require.NoError(t, s.PutSandbox(ctx, sb))
	want.State, want.Reason, want.EndedAt, want.Metadata = "ended", "killed by its owner", kept, nil
	got, err = s.Sandbox(ctx, sb.ID)
	require.NoError(t, err)
	requireEqual(t, want, got)

	_, err = s.Sandbox(ctx, "i0002")
	require.ErrorIs(t, err, store.ErrNotFound)
}

func sandboxesAreListed(t *testing.T, s store.Store) {
	ctx := t.Context()
	for i, id := range []string{"c", "a", "b"} {
		require.NoError(t, s.PutSandbox(ctx, store.Sandbox{ID: id, CreatedAt: now.Add(time.Duration(i) * time.Second)}))
	}
	require.NoError(t, s.PutSandbox(ctx, store.Sandbox{ID: "d", CreatedAt: now, EndedAt: now}))

	require.Equal(t, []string{"c", "a", "b"}, sandboxIDs(t, s, false))
	require.Equal(t, []string{"d"}, sandboxIDs(t, s, true))
}

func pruneTakesOldAndSurplus(t *testing.T, s store.Store) {
	ctx := t.Context()
	require.NoError(t, s.PutSandbox(ctx, store.Sandbox{ID: "living", CreatedAt: now.Add(-time.Hour)}))
	for i := range 6 {
		ended := now.Add(time.Duration(i) * time.Minute)
		require.NoError(t, s.PutSandbox(ctx, store.Sandbox{ID: fmt.Sprintf("e%d", i), CreatedAt: now, EndedAt: ended}))
	}

	n, err := s.PruneSandboxes(ctx, now.Add(90*time.Second), 100)
	require.NoError(t, err)
	require.Equal(t, 2, n)
	require.Equal(t, []string{"e2", "e3", "e4", "e5"}, sandboxIDs(t, s, true))

	n, err = s.PruneSandboxes(ctx, time.Time{}, 3)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Equal(t, []string{"e3", "e4", "e5"}, sandboxIDs(t, s, true))
	require.Equal(t, []string{"living"}, sandboxIDs(t, s, false))
}

func writersDoNotLoseWork(t *testing.T, s store.Store) {
	ctx := t.Context()
	const writers, each = 8, 20
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				id := fmt.Sprintf("s%d-%d", w, i)
				if err := s.PutSandbox(ctx, store.Sandbox{ID: id, CreatedAt: now}); err != nil {
					t.Errorf("write %s: %v", id, err)
				}
				if _, err := s.Sandbox(ctx, id); err != nil {
					t.Errorf("a write must be readable when it returned: %v", err)
				}
			}
		})
	}
	wg.Wait()
	require.Len(t, sandboxIDs(t, s, false), writers*each)
}

func cancelledContextEndsACall(t *testing.T, s store.Store) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, s.PutSandbox(ctx, store.Sandbox{ID: "x"}), context.Canceled)
	require.Empty(t, sandboxIDs(t, s, false))
}

func newKey(t *testing.T, name string) (store.Key, string) {
	t.Helper()
	k, secret, err := store.NewKey(name, now)
	require.NoError(t, err)
	return k, secret
}

func sandboxIDs(t *testing.T, s store.Store, ended bool) []string {
	t.Helper()
	list, err := s.Sandboxes(t.Context(), ended)
	require.NoError(t, err)
	ids := make([]string, len(list))
	for i, sb := range list {
		ids[i] = sb.ID
	}
	return ids
}

func requireEqual(t *testing.T, want, got any) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("records differ (-want +got):\n%s", diff)
	}
}
