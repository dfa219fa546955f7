package doctor

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/dsec-io/dsec/internal/linux/cgroup"
	"github.com/dsec-io/dsec/internal/linux/pidfd"
)

// cgroupLimit bounds one trial with cgroups.
const cgroupLimit = 10 * time.Second

// withBox runs a trial in a sandbox's groups of an instance of its own, and removes them.
func withBox(ctx context.Context, trial func(context.Context, *cgroup.Driver, *cgroup.Box) (string, error)) (found string, err error) {
	ctx, cancel := context.WithTimeout(ctx, cgroupLimit)
	defer cancel()
	instance := "doctor" + strings.ToLower(rand.Text()[:10])
	defer func() { err = errors.Join(err, cgroup.RemoveAll(context.WithoutCancel(ctx), instance)) }()
	d, err := cgroup.Open(instance)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	sh, err := d.Shard("shard-0", 0)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, sh.Close()) }()
	box, err := sh.Box("doctor", cgroup.Limits{Memory: 64 << 20, CPU: 1, PIDs: 16}) //nolint:contextcheck // it only makes folders
	if err != nil {
		return "", err
	}
	return trial(ctx, d, box)
}

func tryControllers(ctx context.Context, _ *machine) (string, error) {
	return withBox(ctx, func(_ context.Context, d *cgroup.Driver, _ *cgroup.Box) (string, error) {
		l := d.Layout()
		layout := "hybrid"
		switch {
		case l.Memory == 2 && l.CPU == 2 && l.PIDs == 2:
			layout = "v2"
		case l.OwnMount:
			layout = "v1, cgroup2 mounted by ourselves"
		}
		return fmt.Sprintf("%s: memory v%d, cpu v%d, pids v%d", layout, l.Memory, l.CPU, l.PIDs), nil
	})
}

// withChild runs a trial with a process that was born in a sandbox's group.
func withChild(ctx context.Context, m *machine, trial func(context.Context, *cgroup.Box, *child) (string, error)) (string, error) {
	return withBox(ctx, func(ctx context.Context, _ *cgroup.Driver, box *cgroup.Box) (found string, err error) {
		join, err := box.JoinFDs()
		if err != nil {
			return "", err
		}
		defer func() { err = errors.Join(err, join.Close()) }()
		c, err := m.child(0, join.V2)
		if err != nil {
			return "", err
		}
		defer func() { err = errors.Join(err, c.end()) }()
		return trial(ctx, box, c)
	})
}

func tryCgroupBirth(ctx context.Context, m *machine) (string, error) {
	return withChild(ctx, m, func(context.Context, *cgroup.Box, *child) (string, error) {
		return "clone3 with CLONE_INTO_CGROUP", nil
	})
}

func tryCgroupFreeze(ctx context.Context, m *machine) (string, error) {
	return withChild(ctx, m, func(ctx context.Context, box *cgroup.Box, _ *child) (string, error) {
		if err := box.Freeze(ctx); err != nil {
			return "", err
		}
		return "a whole group stops and goes on", box.Thaw(ctx)
	})
}

func tryCgroupKill(ctx context.Context, m *machine) (string, error) {
	return withChild(ctx, m, func(ctx context.Context, box *cgroup.Box, c *child) (string, error) {
		if err := box.Kill(); err != nil {
			return "", err
		}
		return "a whole group is killed at once", pidfd.Wait(ctx, c.pidfd)
	})
}
