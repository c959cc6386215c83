package e2b

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"github.com/tombolo-dev/tombolo/internal/image"
)

// awsPatience bounds the request for a password.
const awsPatience = 30 * time.Second

var awsRegion = regexp.MustCompile(`^[a-z0-9-]{1,32}$`)

// awsLogin gets a password for Amazon's registry (ECR's GetAuthorizationToken),
// which is good for twelve hours.
func awsLogin(ctx context.Context, r *imageRegistry) (*image.Login, error) {
	if !awsRegion.MatchString(r.AWSRegion) || r.AWSAccessKeyID == "" || r.AWSSecretAccessKey == "" {
		return nil, invalid("fromImageRegistry: aws needs awsRegion (such as eu-central-1), awsAccessKeyId and awsSecretAccessKey")
	}
	ctx, cancel := context.WithTimeout(ctx, awsPatience)
	defer cancel()
	domain := "amazonaws.com"
	if strings.HasPrefix(r.AWSRegion, "cn-") {
		domain += ".cn"
	}
	request, err := awsRequest(ctx, fmt.Sprintf("https://api.ecr.%s.%s/", r.AWSRegion, domain), r, time.Now())
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, failure(http.StatusBadGateway, "fromImageRegistry: Amazon was not reached for a password: %s", err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	if err != nil || response.StatusCode != http.StatusOK {
		return nil, invalid("fromImageRegistry: Amazon gave no password (%s): %.300s", response.Status, text)
	}
	return readAWSToken(text)
}

// awsRequest is the signed request for a password.
func awsRequest(ctx context.Context, endpoint string, r *imageRegistry, now time.Time) (*http.Request, error) {
	const body = "{}"
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, endpoint, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/x-amz-json-1.1")
	request.Header.Set("X-Amz-Target", "AmazonEC2ContainerRegistry_V20150921.GetAuthorizationToken")
	sum := sha256.Sum256([]byte(body))
	credentials := aws.Credentials{AccessKeyID: r.AWSAccessKeyID, SecretAccessKey: r.AWSSecretAccessKey}
	return request, v4.NewSigner().SignHTTP(ctx, credentials, request, hex.EncodeToString(sum[:]), "ecr", r.AWSRegion, now)
}

// readAWSToken reads user and password from ECR's answer.
func readAWSToken(text []byte) (*image.Login, error) {
	var answer struct {
		AuthorizationData []struct {
			AuthorizationToken string `json:"authorizationToken"`
		} `json:"authorizationData"`
	}
	if err := json.Unmarshal(text, &answer); err != nil || len(answer.AuthorizationData) == 0 {
		return nil, failure(http.StatusBadGateway, "fromImageRegistry: Amazon's answer has no password")
	}
	raw, err := base64.StdEncoding.DecodeString(answer.AuthorizationData[0].AuthorizationToken)
	user, password, found := strings.Cut(string(raw), ":")
	if err != nil || !found {
		return nil, failure(http.StatusBadGateway, "fromImageRegistry: Amazon's password is not readable")
	}
	return &image.Login{User: user, Password: password}, nil
}
