package main

import (
	"bufio"
	"crypto/sha1" // RFC 6455 says so
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
)

// seen is a request as a program in a sandbox saw it.
type seen struct {
	Method, URI, Host string
	Header            http.Header
	Body              string
	Trailer           http.Header
}

func routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/sse", events)
	mux.HandleFunc("/copy", copyBody)
	mux.HandleFunc("/sunk", func(w http.ResponseWriter, r *http.Request) {
		n, ok := sunk.Load(r.URL.RawQuery)
		if !ok {
			n = -1
		}
		fmt.Fprint(w, n)
	})
	mux.HandleFunc("/origin", origin)
	mux.HandleFunc("/to", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Location", r.URL.Query().Get("at"))
		w.WriteHeader(http.StatusFound)
	})
	mux.HandleFunc("/trailers", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Trailer", "X-Sum")
		fmt.Fprint(w, "body")
		w.Header().Set("X-Sum", "4")
		w.Header().Set(http.TrailerPrefix+"X-Late", "yes")
		w.Header().Set(http.TrailerPrefix+"Set-Cookie", "late=1")
	})
	mux.HandleFunc("/big", func(w http.ResponseWriter, r *http.Request) {
		n, _ := strconv.ParseInt(r.URL.Query().Get("n"), 10, 64)
		if r.URL.Query().Get("sized") != "" {
			w.Header().Set("Content-Length", strconv.FormatInt(n, 10))
		}
		_, _ = io.Copy(w, io.LimitReader(new(reader), n))
	})
	mux.HandleFunc("/zeros", func(w http.ResponseWriter, r *http.Request) {
		n, _ := strconv.ParseInt(r.URL.Query().Get("n"), 10, 64)
		w.Header().Set("Content-Length", strconv.FormatInt(n, 10))
		block := make([]byte, 256<<10)
		for ; n > 0; n -= int64(len(block)) {
			_, _ = w.Write(block[:min(n, int64(len(block)))])
		}
	})
	mux.HandleFunc("/full", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Connection", "close")
		http.Error(w, "too much", http.StatusRequestEntityTooLarge)
	})
	mux.HandleFunc("/hang-up", func(w http.ResponseWriter, _ *http.Request) { panic(http.ErrAbortHandler) })
	mux.HandleFunc("/half", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		fmt.Fprint(w, "half")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	mux.HandleFunc("/upgrade", upgrade)
	mux.HandleFunc("/ws", websocket)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if h, pattern := mux.Handler(r); pattern != "" && r.URL.Path == pattern {
			h.ServeHTTP(w, r)
			return
		}
		look(w, r)
	})
}

// look answers with the request as it came.
func look(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(seen{r.Method, r.RequestURI, r.Host, r.Header, string(body), r.Trailer})
}

// origin sends headers that mean the whole origin.
func origin(w http.ResponseWriter, _ *http.Request) {
	for name, value := range map[string]string{
		"Set-Cookie": "a=1", "Service-Worker-Allowed": "/", "Clear-Site-Data": `"*"`, "Strict-Transport-Security": "max-age=1",
		"Alt-Svc": `h2=":1"`, "X-Dsec-Fake": "1", "X-Request-Id": "fake", "Content-Security-Policy": "default-src 'self'",
		"X-Own": "kept", "Report-To": "{}",
	} {
		w.Header().Set(name, value)
	}
	w.WriteHeader(http.StatusEarlyHints)
	fmt.Fprint(w, "<script>alert(1)</script>")
}

// events sends an event, and another one after each byte of the body.
func events(w http.ResponseWriter, r *http.Request) {
	rc := http.NewResponseController(w)
	_ = rc.EnableFullDuplex()
	w.Header().Set("Content-Type", "text/event-stream")
	one := make([]byte, 1)
	for i := 0; ; i++ {
		fmt.Fprintf(w, "data: %d\n\n", i)
		_ = rc.Flush()
		if _, err := r.Body.Read(one); err != nil {
			return
		}
	}
}

// copyBody sends the body back as it comes.
func copyBody(w http.ResponseWriter, r *http.Request) {
	rc := http.NewResponseController(w)
	_ = rc.EnableFullDuplex()
	_ = rc.Flush()
	buf := make([]byte, 64<<10)
	for {
		n, err := r.Body.Read(buf)
		_, _ = w.Write(buf[:n])
		_ = rc.Flush()
		if err != nil {
			return
		}
	}
}

// upgrade changes to a protocol that echoes bytes, and ends its side after the client's.
func upgrade(w http.ResponseWriter, r *http.Request) {
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\nSet-Cookie: u=1\r\n\r\n", r.Header.Get("Upgrade"))
	_, _ = io.Copy(conn, rw)
	fmt.Fprint(conn, "the end")
}

// websocket echoes messages.
func websocket(w http.ResponseWriter, r *http.Request) {
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	sum := sha1.Sum([]byte(r.Header.Get("Sec-Websocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	fmt.Fprintf(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: %s\r\n\r\n",
		base64.StdEncoding.EncodeToString(sum[:]))
	for rw.Flush() == nil && echoFrame(rw) {
	}
}

// echoFrame sends one frame back. It tells whether there may be more.
func echoFrame(rw *bufio.ReadWriter) bool {
	var head [2]byte
	if _, err := io.ReadFull(rw, head[:]); err != nil {
		return false
	}
	size := uint64(head[1] & 0x7f)
	if more := map[uint64]int{126: 2, 127: 8}[size]; more > 0 {
		var long [8]byte
		if _, err := io.ReadFull(rw, long[8-more:]); err != nil {
			return false
		}
		size = binary.BigEndian.Uint64(long[:])
	}
	var mask [4]byte
	if _, err := io.ReadFull(rw, mask[:]); err != nil {
		return false
	}
	data := make([]byte, size)
	if _, err := io.ReadFull(rw, data); err != nil {
		return false
	}
	for i := range data {
		data[i] ^= mask[i%4]
	}
	_ = rw.WriteByte(head[0])
	switch {
	case size < 126:
		_ = rw.WriteByte(byte(size))
	case size < 1<<16:
		_ = rw.WriteByte(126)
		_, _ = rw.Write(binary.BigEndian.AppendUint16(nil, uint16(size)))
	default:
		_ = rw.WriteByte(127)
		_, _ = rw.Write(binary.BigEndian.AppendUint64(nil, size))
	}
	_, _ = rw.Write(data)
	const closing = 8
	return head[0]&0x0f != closing || rw.Flush() != nil
}
