package flame

import (
	"bufio"
	"bytes"
	"debug/elf"
	"debug/gosym"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// Symbols knows the functions of a Go program, also of one whose symbols were stripped: Go keeps the table that its
// runtime needs.
type Symbols struct {
	table *gosym.Table
	text  elf.SectionHeader
}

// ReadSymbols finds them in a program.
func ReadSymbols(program []byte) (*Symbols, error) {
	f, err := elf.NewFile(bytes.NewReader(program))
	if err != nil {
		return nil, fmt.Errorf("functions of the program: %w", err)
	}
	text, lines := f.Section(".text"), f.Section(".gopclntab")
	if text == nil || lines == nil {
		return nil, fmt.Errorf("functions of the program: no .text or .gopclntab in it: %w", elf.ErrNoSymbols)
	}
	data, err := lines.Data()
	if err != nil {
		return nil, fmt.Errorf("functions of the program: %w", err)
	}
	table, err := gosym.NewTable(nil, gosym.NewLineTable(data, text.Addr))
	if err != nil {
		return nil, fmt.Errorf("functions of the program: %w", err)
	}
	return &Symbols{table, text.SectionHeader}, nil
}

// at names the function at an address; "" if there is none. Of a file that it can't open perf tells places in the file
// instead of addresses.
func (s *Symbols) at(pc uint64) string {
	if s == nil {
		return ""
	}
	if pc >= s.text.Offset && pc < s.text.Offset+s.text.Size && pc < s.text.Addr {
		pc += s.text.Addr - s.text.Offset
	}
	if f := s.table.PCToFunc(pc); f != nil {
		return f.Name
	}
	return ""
}

// Perf reads what `perf script -F comm,ip,sym,dso` prints, one sample a stack. Functions of files whose name has program
// in it are named by symbols, which may be nil.
func Perf(script io.Reader, program string, symbols *Symbols) ([]Stack, error) {
	var all []Stack
	var st Stack
	end := func() {
		if len(st.Frames) > 1 {
			slices.Reverse(st.Frames[1:]) // perf begins with the innermost
			all = append(all, st)
		}
		st = Stack{}
	}
	lines := bufio.NewScanner(script)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := strings.TrimRight(lines.Text(), " ")
		switch {
		case line == "":
			end()
		case line[0] != ' ' && line[0] != '\t' || len(st.Frames) == 0:
			end()
			st = Stack{Frames: []string{strings.Trim(line, " \t:")}, Value: 1}
		default:
			st.Frames = append(st.Frames, perfFrame(line, program, symbols))
		}
	}
	end()
	return all, lines.Err()
}

// perfFrame names the function of a line "ADDRESS SYMBOL (FILE)".
func perfFrame(line, program string, symbols *Symbols) string {
	address, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
	symbol, file := rest, ""
	if before, after, ok := strings.Cut(rest, " ("); ok {
		symbol, file = before, strings.TrimSuffix(after, ")")
	}
	if strings.HasPrefix(file, "[kernel") || file == "[guest.kernel.kallsyms]" {
		return symbol + kernelMark
	}
	if strings.Contains(file, program) {
		if pc, err := strconv.ParseUint(address, 16, 64); err == nil {
			if name := symbols.at(pc); name != "" {
				return name
			}
		}
	}
	if symbol == "" || symbol == "[unknown]" {
		return "? in " + file
	}
	return symbol
}
