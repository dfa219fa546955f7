package train

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/dsec-io/dsec/rl/f32"
	"github.com/dsec-io/dsec/rl/nn"
	"github.com/dsec-io/dsec/rl/safetensors"
)

// CheckpointName is a checkpoint's file in a run's folder.
const CheckpointName = "checkpoint.safetensors"

// Saved is what a checkpoint tells besides its numbers.
type Saved struct {
	Env     string    `json:"env"`
	Config  Config    `json:"config"`
	Policy  nn.Config `json:"policy"`
	Backend string    `json:"backend"` // of the numbers; another one goes on with other roundings
	Update  int       `json:"update"`
	Steps   int64     `json:"steps"`
	// OptimizerSteps and Rand are what a run needs to go on besides the tensors.
	OptimizerSteps int    `json:"optimizer_steps"`
	Rand           uint64 `json:"rand,string"`
}

const metaKey = "dsec.rl"

// tensors are all numbers of a checkpoint, as views: weights first, then the optimizer's.
func (t *trainer) tensors() []safetensors.Tensor {
	var all []safetensors.Tensor
	for _, p := range t.policy.Params() {
		all = append(all, tensor("policy."+p.Name, p.W))
	}
	for _, s := range t.opt.State() {
		all = append(all, tensor("optimizer."+s.Name, s.Matrix))
	}
	return all
}

func tensor(name string, m f32.Matrix) safetensors.Tensor {
	return safetensors.Tensor{Name: name, Shape: []int{m.Rows, m.Cols}, Data: m.Data}
}

// save writes the checkpoint of the run so far.
func (t *trainer) save() error {
	text, err := json.Marshal(Saved{
		Env: t.spec.Name, Config: t.cfg, Policy: t.policy.Config(), Backend: f32.Backend(),
		Update: t.update, Steps: t.steps, OptimizerSteps: t.opt.Steps(), Rand: t.rnd.State,
	})
	if err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	file, err := safetensors.Encode(t.tensors(), map[string]string{metaKey: string(text)})
	if err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	if err := replace(filepath.Join(t.cfg.Folder, CheckpointName), file); err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	return nil
}

// replace writes a file so that whenever the machine stops there's the old one or the new one, whole.
func replace(name string, data []byte) (err error) {
	tmp := name + ".new"
	f, err := os.Create(tmp)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	if err := os.Rename(tmp, name); err != nil {
		return err
	}
	folder, err := os.Open(filepath.Dir(name))
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}

func read(name string) (Saved, []safetensors.Tensor, error) {
	file, err := os.ReadFile(name)
	if err != nil {
		return Saved{}, nil, fmt.Errorf("checkpoint: %w", err)
	}
	tensors, meta, err := safetensors.Decode(file)
	if err != nil {
		return Saved{}, nil, fmt.Errorf("checkpoint %s: %w", name, err)
	}
	var saved Saved
	if err := json.Unmarshal([]byte(meta[metaKey]), &saved); err != nil {
		return Saved{}, nil, fmt.Errorf("checkpoint %s: not one of this program: %w", name, err)
	}
	return saved, tensors, nil
}

// resume takes the run's checkpoint, where there's one.
func (t *trainer) resume() error {
	name := filepath.Join(t.cfg.Folder, CheckpointName)
	saved, tensors, err := read(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	mine, err := json.Marshal(t.cfg)
	if err != nil {
		return err
	}
	theirs, err := json.Marshal(saved.Config)
	if err != nil {
		return err
	}
	if string(mine) != string(theirs) || saved.Env != t.spec.Name {
		return fmt.Errorf("checkpoint %s is of another run: %s with %s, this is %s with %s", name, saved.Env, theirs, t.spec.Name, mine)
	}
	if err := load(t.tensors(), tensors); err != nil {
		return fmt.Errorf("checkpoint %s: %w", name, err)
	}
	t.update, t.steps, t.rnd.State = saved.Update, saved.Steps, saved.Rand
	t.opt.SetSteps(saved.OptimizerSteps)
	return nil
}

// load copies what is needed from what there is.
func load(need, have []safetensors.Tensor) error {
	for _, n := range need {
		i := slices.IndexFunc(have, func(h safetensors.Tensor) bool { return h.Name == n.Name })
		if i < 0 || !slices.Equal(have[i].Shape, n.Shape) {
			return fmt.Errorf("no tensor %q of shape %v", n.Name, n.Shape)
		}
		copy(n.Data, have[i].Data)
	}
	return nil
}

// Load reads the policy of a checkpoint.
func Load(name string) (*nn.Policy, Saved, error) {
	saved, tensors, err := read(name)
	if err != nil {
		return nil, Saved{}, err
	}
	policy, err := nn.New(saved.Policy, 0)
	if err != nil {
		return nil, Saved{}, fmt.Errorf("checkpoint %s: %w", name, err)
	}
	var need []safetensors.Tensor
	for _, p := range policy.Params() {
		need = append(need, tensor("policy."+p.Name, p.W))
	}
	if err := load(need, tensors); err != nil {
		return nil, Saved{}, fmt.Errorf("checkpoint %s: %w", name, err)
	}
	return policy, saved, nil
}
