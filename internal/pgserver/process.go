package pgserver

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
)

// account is the unprivileged user that a server runs as where this process is root.
type account struct {
	name     string
	uid, gid int
}

// serverAccount gives the user to run the server as: nil for our own.
func serverAccount() (*account, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, errUID := strconv.Atoi(u.Uid)
		gid, errGID := strconv.Atoi(u.Gid)
		if errUID != nil || errGID != nil || uid == 0 {
			continue
		}
		return &account{name: name, uid: uid, gid: gid}, nil
	}
	return nil, fmt.Errorf("PostgreSQL refuses to run as root, and this machine has neither a user postgres nor nobody to run it as")
}

// checkReachable tells whether the account may enter a directory and all that are above it.
func (a *account) checkReachable(dir string) error {
	if a == nil {
		return nil
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	for {
		info, err := os.Stat(dir)
		if err != nil {
			return err
		}
		stat, ok := info.Sys().(*syscall.Stat_t)
		entered := info.Mode()&0o001 != 0 || ok && int(stat.Uid) == a.uid && info.Mode()&0o100 != 0
		if !entered {
			return fmt.Errorf("the user %s, who the server runs as, may not enter %s", a.name, dir)
		}
		if parent := filepath.Dir(dir); parent != dir {
			dir = parent
			continue
		}
		return nil
	}
}

// command prepares a program of the server: as its account, in its directory, without our environment's PG variables.
func command(binDir, program string, dir *runDir, as *account, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(binDir, program), args...)
	cmd.Dir = dir.path
	// LC_ALL makes messages English, which launch reads. TZ is left to the server's own default.
	cmd.Env = []string{"PATH=" + binDir + string(os.PathListSeparator) + os.Getenv("PATH"), "LC_ALL=C", "HOME=" + dir.path}
	// Its own process group: an interrupt typed at the terminal is for us, and we stop the server in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if as != nil {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(as.uid), Gid: uint32(as.gid)}
	}
	return cmd
}

// process is one run of the postgres program.
type process struct {
	cmd   *exec.Cmd
	ended context.Context // done when the program has ended and err is set
	err   error
}

// spawn starts a command that ends when this process does, where the system can see to it.
func spawn(cmd *exec.Cmd) (*process, error) {
	endWithParent(cmd.SysProcAttr)
	ended, end := context.WithCancel(context.Background())
	p := &process{cmd: cmd, ended: ended}
	started := make(chan error, 1)
	go func() {
		// The signal at the parent's death is sent when the thread ends that started the child. This one waits as long as
		// the child lives, and is never unlocked, so no other goroutine can make the thread end earlier.
		runtime.LockOSThread()
		defer end()
		err := cmd.Start()
		started <- err
		if err == nil {
			p.err = cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		<-ended.Done()
		return nil, err
	}
	return p, nil
}

// signal sends a signal; to a program that has ended it is nothing.
func (p *process) signal(sig syscall.Signal) {
	_ = p.cmd.Process.Signal(sig)
}

func (p *process) running() bool {
	return p.ended.Err() == nil
}
