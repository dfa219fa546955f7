package flame

import (
	"encoding/xml"
	"errors"
	"fmt"
	"strings"
)

// The measures of a graph, in pixels.
const (
	width     = 1400.0
	margin    = 10.0
	rowHeight = 17
	top       = 60
	textWidth = 6.6 // of a letter
	narrowest = 0.4 // boxes below it aren't drawn
)

// ErrEmpty means that nothing was found running.
var ErrEmpty = errors.New("the profile has no samples")

// Graph is what a graph says beside its boxes.
type Graph struct {
	Title string
	Unit  string // of the values of its stacks
}

// SVG draws stacks. The picture is one file: every box tells its name and share to whoever points at it, a click makes a
// box as wide as the picture, and a click on the lowest one goes back.
func (g Graph) SVG(stacks []Stack) (string, error) {
	root := tree(stacks)
	if root.value == 0 {
		return "", ErrEmpty
	}
	least := int64(float64(root.value) * narrowest / (width - 2*margin))
	rows := root.depth(least)
	height := top + rows*rowHeight + int(margin)
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %g %d" width="%g" height="%d" font-family="monospace" font-size="11">`+"\n",
		width, height, width, height)
	fmt.Fprintf(&b, `<style>.f{cursor:pointer}.f:hover rect{stroke:#000}</style><rect width="100%%" height="100%%" fill="#fff"/>`+"\n")
	fmt.Fprintf(&b, `<text x="%g" y="22" font-size="15" font-family="sans-serif">%s</text>`+"\n", margin, escape(g.Title))
	fmt.Fprintf(&b, `<text x="%g" y="42" font-family="sans-serif">%s; blue: DSec, orange: the kernel, grey: Go's runtime, pink: Go's network, green: the rest. Click to zoom.</text>`+"\n",
		margin, escape(fmt.Sprintf("%d %s", root.value, g.Unit)))
	d := drawing{b: &b, graph: g, total: root.value, least: least, height: height}
	d.box(root, 0, 0)
	fmt.Fprintf(&b, "<script>//<![CDATA[\n%s//]]></script>\n</svg>\n", zoomScript)
	return b.String(), nil
}

// drawing is a graph being drawn.
type drawing struct {
	b      *strings.Builder
	graph  Graph
	total  int64
	least  int64
	height int
}

// box draws n, which begins after so much of the total, and what is above it.
func (d *drawing) box(n *node, before int64, row int) {
	if n.value < d.least {
		return
	}
	scale := (width - 2*margin) / float64(d.total)
	x, w := margin+float64(before)*scale, float64(n.value)*scale
	y := d.height - int(margin) - (row+1)*rowHeight
	name := escape(n.name)
	fmt.Fprintf(d.b, `<g class="f" data-x="%.2f" data-w="%.2f" data-r="%d" data-n="%s"><title>%s: %d %s, %.2f%%</title>`,
		x, w, row, name, name, n.value, escape(d.graph.Unit), 100*float64(n.value)/float64(d.total))
	fmt.Fprintf(d.b, `<rect x="%.2f" y="%d" width="%.2f" height="%d" fill="%s" stroke="#fff" stroke-width="0.5"/>`, x, y, max(w, narrowest), rowHeight-1, colour(n.name))
	fmt.Fprintf(d.b, `<text x="%.2f" y="%d">%s</text></g>`+"\n", x+2, y+12, escape(cut(n.name, w)))
	for _, c := range n.children() {
		d.box(c, before, row+1)
		before += c.value
	}
}

// cut is as much of a name as fits into a box.
func cut(name string, w float64) string {
	letters := []rune(name)
	fit := int((w - 4) / textWidth)
	switch {
	case len(letters) <= fit:
		return name
	case fit < 4:
		return ""
	}
	return string(letters[:fit-1]) + "…"
}

func escape(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // a strings.Builder takes everything
	return b.String()
}

// zoomScript makes the box that was clicked as wide as the picture, and hides what is beside it.
const zoomScript = `const all=[...document.querySelectorAll("g.f")],W=1380,M=10;
function zoom(x,w){for(const g of all){const r=g.querySelector("rect"),t=g.querySelector("text"),a=+g.dataset.x,b=+g.dataset.w;
const under=a<=x+1e-3&&a+b>=x+w-1e-3,inside=a>=x-1e-3&&a+b<=x+w+1e-3;
g.style.display=under||inside?"":"none";if(!under&&!inside)continue;
const nx=under?M:M+(a-x)*W/w,nw=under?W:b*W/w,fit=Math.floor((nw-4)/6.6),n=g.dataset.n;
r.setAttribute("x",nx);r.setAttribute("width",Math.max(nw,0.4));r.style.opacity=under&&b>w+1e-3?0.5:1;
t.setAttribute("x",nx+2);t.textContent=n.length<=fit?n:fit<4?"":n.slice(0,fit-1)+"…";}}
for(const g of all)g.addEventListener("click",()=>zoom(+g.dataset.x,+g.dataset.w));
`
