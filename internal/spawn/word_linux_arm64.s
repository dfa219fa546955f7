#include "textflag.h"

// func casWord(p *int32, old, new int32) bool
TEXT ·casWord(SB),NOSPLIT,$0-17
	MOVD p+0(FP), R0
	MOVW old+8(FP), R1
	MOVW new+12(FP), R2
again:
	LDAXRW (R0), R3
	CMPW R1, R3
	BNE other
	STLXRW R2, (R0), R4
	CBNZ R4, again
	MOVD $1, R5
	MOVB R5, ret+16(FP)
	RET
other:
	CLREX
	MOVB ZR, ret+16(FP)
	RET

// func loadWord(p *int32) int32
TEXT ·loadWord(SB),NOSPLIT,$0-12
	MOVD p+0(FP), R0
	LDARW (R0), R1
	MOVW R1, ret+8(FP)
	RET
