package iamface_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/dsec-io/dsec/internal/apiserver/iamface"
)

// TestResourceHoldsNoSecret: who mixes up arguments doesn't get a token into the audit log.
func TestResourceHoldsNoSecret(t *testing.T) {
	const secret = "dsec_3xlp5ny2xiqd7vajc3mxzxbbbbbbbbbb"
	for path, value := range map[string]string{"/v1/sandboxes/": "id", "/v1/images/": "name", "/v1/projects/": "project", "/v1/tokens/": "id", "/v1/images?name=": ""} {
		r := httptest.NewRequest(http.MethodDelete, path+secret, http.NoBody)
		if value != "" {
			r.SetPathValue(value, secret)
		}
		got := iamface.Resource(r, http.Header{})
		if strings.Contains(got, secret) || !strings.Contains(got, secret[5:15]) {
			t.Errorf("%s: the resource is %q", path, got)
		}
	}
}
