package edge

import (
	"context"
	"maps"
	"slices"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/edge/admission"
	"github.com/dsec-io/dsec/internal/edge/spec"
)

// patch changes a sandbox, which a paused one sleeps through. Limits come first: they are all that can fail, and then
// nothing is changed.
func (e *Edge) patch(ctx context.Context, sb *sandbox, p api.Patch) (api.Sandbox, error) {
	if err := spec.CheckPatch(p); err != nil {
		return api.Sandbox{}, err
	}
	sb.work.Lock()
	defer sb.work.Unlock()
	now, err := e.living(ctx, sb)
	if err != nil {
		return api.Sandbox{}, err
	}
	sb.keepBorn()
	changed := map[string]any{}
	if p.Resources != nil {
		if err := e.setLimits(ctx, sb, now, *p.Resources); err != nil {
			return api.Sandbox{}, err
		}
		changed["resources"] = spec.Merged(now.spec.Resources, *p.Resources)
	}
	if err := e.setWords(sb, p); err != nil {
		return api.Sandbox{}, err
	}
	if p.Env != nil {
		changed["env"] = slices.Sorted(maps.Keys(*p.Env)) // names alone: values may be secret
	}
	if p.Labels != nil {
		changed["labels"] = *p.Labels
	}
	e.tell(sb, "updated", "", changed)
	return sb.view(), nil
}

// setWords replaces what only the record holds.
func (e *Edge) setWords(sb *sandbox, p api.Patch) error {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	if !alive(sb.rec.State) {
		return wrongState(sb.id, sb.nowLocked())
	}
	next := *sb.rec
	if p.Env != nil {
		next.Spec.Env = *p.Env
	}
	if p.Labels != nil {
		next.Spec.Labels = *p.Labels
	}
	if err := e.store.Save(&next); err != nil {
		return lifeError("patch", err)
	}
	*sb.rec = next
	sb.env = spec.Environment(next.ImageEnv, next.Spec.Env)
	return nil
}

// setLimits admits and sets new limits. While they change, the larger of old and new is counted. The caller holds
// sb.work.
func (e *Edge) setLimits(ctx context.Context, sb *sandbox, now settled, p api.Resources) error {
	if err := admission.Possible(p); err != nil {
		return err
	}
	old := now.spec.Resources
	want := spec.Merged(old, p)
	if err := e.room.Change(sb.id, admission.ClaimOf(old).Max(admission.ClaimOf(want))); err != nil {
		return err
	}
	err := e.saveLimits(sb, want, true)
	if err == nil {
		err = now.box.SetLimits(ctx, want)
	}
	kept := want
	if err != nil {
		kept = old
	}
	// Not above what is counted already, so it can only fail for a sandbox that has ended meanwhile.
	if lerr := e.room.Change(sb.id, admission.ClaimOf(kept)); err == nil {
		err = lerr
	}
	if serr := e.saveLimits(sb, kept, false); err == nil {
		err = serr
	}
	if err == nil {
		return nil
	}
	if v := sb.view(); !alive(v.State) {
		return wrongState(sb.id, settled{state: v.State, reason: v.Reason})
	}
	return lifeError("patch", err)
}

func (e *Edge) saveLimits(sb *sandbox, r api.Resources, patching bool) error {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	sb.rec.Spec.Resources, sb.rec.Patching = r, patching
	return e.store.Save(sb.rec)
}
