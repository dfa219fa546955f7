package api

// maxKey is the length of the longest idempotency key, in bytes.
const maxKey = 255

// CheckKey refuses what isn't an idempotency key: 1 to 255 printable ASCII characters without spaces.
func CheckKey(key string) error {
	const hint = "a random one of 20 characters will do"
	if key == "" || len(key) > maxKey {
		return FieldError(CodeInvalid, "Idempotency-Key", hint, "a key has 1 to %d characters, not %d", maxKey, len(key))
	}
	for i := range len(key) {
		if key[i] <= ' ' || key[i] > '~' {
			return FieldError(CodeInvalid, "Idempotency-Key", hint, "character %d of the key isn't printable ASCII", i+1)
		}
	}
	return nil
}
