package e2b

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/tombolo-dev/tombolo/internal/store"
)

// deliveredEvent is the body that webhooks get. The service sends the names with
// underscores; its documentation had the others for long, and receivers exist for
// both.
type deliveredEvent struct {
	ID                 string    `json:"id"`
	Version            string    `json:"version"`
	Type               string    `json:"type"`
	Timestamp          time.Time `json:"timestamp"`
	EventCategory      string    `json:"event_category"`
	EventLabel         string    `json:"event_label"`
	EventData          eventData `json:"event_data"`
	SandboxID          string    `json:"sandbox_id"`
	SandboxExecutionID string    `json:"sandbox_execution_id"`
	SandboxTemplateID  string    `json:"sandbox_template_id"`
	SandboxBuildID     string    `json:"sandbox_build_id"`
	SandboxTeamID      string    `json:"sandbox_team_id"`

	documentedNames
}

type documentedNames struct {
	EventData          eventData `json:"eventData"`
	SandboxID          string    `json:"sandboxId"`
	SandboxExecutionID string    `json:"sandboxExecutionId"`
	SandboxTemplateID  string    `json:"sandboxTemplateId"`
	SandboxBuildID     string    `json:"sandboxBuildId"`
	SandboxTeamID      string    `json:"sandboxTeamId"`
}

// maxSalt bounds the search for a salt. One in four fits.
const maxSalt = 250

// FormatDelivery makes the body and the headers of a delivery to a webhook. It is
// an event.Format.
//
// The signature is SHA-256 over secret and body, as the service has it, and weak
// for that: who has seen one can sign a longer body. Unpadded base64 is what the
// service sends, base64url what its documentation verifies with. A salt in the body
// is chosen so that the signature has none of the four characters in which they
// differ, and verifies either way.
func FormatDelivery(d store.DueDelivery) (body []byte, header http.Header, err error) {
	header = http.Header{}
	header.Set("E2b-Webhook-Id", d.WebhookID)
	header.Set("E2b-Delivery-Id", d.ID)
	header.Set("E2b-Signature-Version", "v1")
	bare, err := encodeDelivered(encodeEvent(d.Event))
	if err != nil {
		return nil, nil, err
	}
	for salt := range maxSalt {
		body = fmt.Appendf(nil, `%s,"salt":%d}`, bare[:len(bare)-1], salt)
		signature := signDelivery(d.Webhook.Secret, body)
		header.Set("E2b-Signature", signature)
		if !strings.ContainsAny(signature, "+/") {
			break
		}
	}
	return body, header, nil
}

// encodeDelivered writes JSON as JavaScript does, for receivers that verify what
// they have decoded and encoded again.
func encodeDelivered(e wireEvent) ([]byte, error) {
	var buf bytes.Buffer
	encoder := json.NewEncoder(&buf)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(deliveredEvent{
		ID: e.ID, Version: e.Version, Type: e.Type, Timestamp: e.Timestamp,
		EventCategory: e.EventCategory, EventLabel: e.EventLabel, EventData: e.EventData,
		SandboxID: e.SandboxID, SandboxExecutionID: e.SandboxExecutionID, SandboxTemplateID: e.SandboxTemplateID,
		SandboxBuildID: e.SandboxBuildID, SandboxTeamID: e.SandboxTeamID,
		documentedNames: documentedNames{
			EventData: e.EventData, SandboxID: e.SandboxID, SandboxExecutionID: e.SandboxExecutionID,
			SandboxTemplateID: e.SandboxTemplateID, SandboxBuildID: e.SandboxBuildID, SandboxTeamID: e.SandboxTeamID,
		},
	})
	return bytes.TrimSpace(buf.Bytes()), err
}

func signDelivery(secret string, body []byte) string {
	hash := sha256.New()
	hash.Write([]byte(secret))
	hash.Write(body)
	return base64.RawStdEncoding.EncodeToString(hash.Sum(nil))
}
