#include "textflag.h"

// func casWord(p *int32, old, new int32) bool
TEXT ·casWord(SB),NOSPLIT,$0-17
	MOVQ p+0(FP), BX
	MOVL old+8(FP), AX
	MOVL new+12(FP), CX
	LOCK
	CMPXCHGL CX, 0(BX)
	SETEQ ret+16(FP)
	RET

// func loadWord(p *int32) int32
TEXT ·loadWord(SB),NOSPLIT,$0-12
	MOVQ p+0(FP), BX
	MOVL 0(BX), AX
	MOVL AX, ret+8(FP)
	RET
