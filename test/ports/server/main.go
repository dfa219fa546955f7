// Command server is what the tests of ports run inside a sandbox: it listens on the ports that tests dial, each with a
// behaviour of its own, and prints "ready" when all of them are open.
package main

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// reader is endless, repeating data that no buffer size divides.
type reader struct{ at int64 }

// Read implements [io.Reader].
func (r *reader) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(r.at * 7919 >> 3)
		r.at++
	}
	return len(p), nil
}

func main() {
	name := ""
	if len(os.Args) > 1 {
		name = os.Args[1]
	}
	for addr, serve := range map[string]func(*net.TCPConn) error{
		"127.0.0.1:7001": echo, "127.0.0.1:7002": source, "127.0.0.1:7003": sink, "127.0.0.1:7004": deaf,
		"[::1]:7005": echo, "127.0.0.1:7006": func(c *net.TCPConn) error { return say(c, name) }, "127.0.0.1:7007": reset,
		"127.0.0.1:7008": slowSink, "127.0.0.1:7009": mute,
	} {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		go accept(l, serve)
	}
	if err := full(7010); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	l, err := net.Listen("tcp", "127.0.0.1:8080")
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("ready")
	srv := &http.Server{Handler: routes(), ReadHeaderTimeout: time.Minute}
	fmt.Println(srv.Serve(l))
	os.Exit(1)
}

func accept(l net.Listener, serve func(*net.TCPConn) error) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			if err := serve(c.(*net.TCPConn)); err != nil {
				fmt.Println(l.Addr(), err)
			}
		}()
	}
}

// echo sends back what it gets, and ends its side when that ends.
func echo(c *net.TCPConn) error {
	_, err := io.Copy(c, c)
	return err
}

// source sends as many bytes as the line that it gets says, and their digest is the reader's to know.
func source(c *net.TCPConn) error {
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		return err
	}
	n, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
	if err != nil {
		return err
	}
	_, err = io.Copy(c, io.LimitReader(new(reader), n))
	return err
}

// sunk is what sinks have taken, by its digest.
var sunk sync.Map

// sink takes everything, then says how much it was and its digest.
func sink(c *net.TCPConn) error {
	h := sha256.New()
	n, err := io.Copy(h, c)
	if err != nil {
		return err
	}
	digest := hex.EncodeToString(h.Sum(nil))
	sunk.Store(digest, n)
	return say(c, fmt.Sprintf("%d %s", n, digest))
}

// slowSink is sink after a while in which it takes nothing.
func slowSink(c *net.TCPConn) error {
	<-time.After(500 * time.Millisecond)
	return sink(c)
}

// deaf never reads until its peer has had enough.
func deaf(c *net.TCPConn) error {
	_ = c.SetReadBuffer(4096)
	<-time.After(time.Hour)
	return nil
}

func say(c *net.TCPConn, what string) error {
	_, err := io.WriteString(c, what)
	return err
}

// reset sends something and breaks off.
func reset(c *net.TCPConn) error {
	if err := say(c, "half of it"); err != nil {
		return err
	}
	one := make([]byte, 1)
	if _, err := c.Read(one); err != nil { // until the reader has had that
		return err
	}
	return c.SetLinger(0)
}

// mute says something, ends its side, and goes on reading until its peer ends.
func mute(c *net.TCPConn) error {
	if err := say(c, "that's all"); err != nil {
		return err
	}
	if err := c.CloseWrite(); err != nil {
		return err
	}
	return sink(c)
}

// full listens on a port with room for no more than one connection, and accepts none.
func full(port int) error {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return err
	}
	return syscall.Listen(fd, 0)
}
