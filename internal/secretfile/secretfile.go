// Package secretfile reads the small files that settings name: tokens, client secrets, database URLs, certificates and keys.
//
// Such a path comes from an operator and is read at the start and again while the service runs, often with a caller waiting. What
// lies there may be wrong: opening a named pipe waits for a writer that never comes, and a device has no end. So only regular
// files are read (symbolic links are followed, as those of a mounted Kubernetes secret), never more than MaxBytes of them, and no
// call here can wait for another process. Errors name the path and never hold content.
package secretfile

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"
)

// MaxBytes is the greatest size of a file that is read. A bundle of all public certificate authorities has a quarter of it.
const MaxBytes = 1 << 20

// ErrNotRegular is wrapped by the error for a path that leads to something that is no regular file.
var ErrNotRegular = errors.New("is not a regular file")

// Read returns the file's content, at most MaxBytes; a larger file is an error.
func Read(path string) ([]byte, error) {
	f, err := open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	// The size that the file tells may be of a moment ago.
	content, err := io.ReadAll(io.LimitReader(f, MaxBytes+1))
	if err != nil {
		return nil, err
	}
	if len(content) > MaxBytes {
		return nil, tooLarge(path)
	}
	return content, nil
}

// ReadText is Read without the white space around what the file holds.
func ReadText(path string) (string, error) {
	content, err := Read(path)
	return strings.TrimSpace(string(content)), err
}

// Check tells what would keep Read from reading the file now.
func Check(path string) error {
	f, err := open(path)
	if err != nil {
		return err
	}
	return f.Close()
}

// KeyPair reads a certificate (PEM, with its chain) and its private key, as tls.LoadX509KeyPair does.
func KeyPair(certFile, keyFile string) (tls.Certificate, error) {
	cert, err := Read(certFile)
	if err != nil {
		return tls.Certificate{}, err
	}
	key, err := Read(keyFile)
	if err != nil {
		return tls.Certificate{}, err
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("%s and %s: %w", certFile, keyFile, err)
	}
	return pair, nil
}

// CertPool reads a file of certificate authorities (PEM); a file without any is an error.
func CertPool(path string) (*x509.CertPool, error) {
	pem, err := Read(path)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("no certificate in %s", path)
	}
	return pool, nil
}

// open opens a regular file that is not too large.
func open(path string) (*os.File, error) {
	// Looked at before it is opened, because opening a device can have effects; and opened without waiting and looked at again,
	// because it can be another file by then.
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if err := check(path, info); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if info, err = f.Stat(); err == nil {
		err = check(path, info)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func check(path string, info fs.FileInfo) error {
	switch {
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s %w but %s", path, ErrNotRegular, kind(info.Mode()))
	case info.Size() > MaxBytes:
		return tooLarge(path)
	}
	return nil
}

func tooLarge(path string) error {
	return fmt.Errorf("%s is larger than %d bytes", path, MaxBytes)
}

func kind(mode fs.FileMode) string {
	switch {
	case mode.IsDir():
		return "a directory"
	case mode&fs.ModeNamedPipe != 0:
		return "a pipe"
	case mode&fs.ModeSocket != 0:
		return "a socket"
	case mode&fs.ModeDevice != 0:
		return "a device"
	}
	return "something else"
}
