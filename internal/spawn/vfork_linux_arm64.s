#include "go_asm.h"
#include "textflag.h"

// func vforkScript(args *cloneArgs, first *Step, fail *uintptr) uintptr
//
// The child owns R19 (step) and R20 (fail) and touches no stack: it runs on its suspended parent's.
TEXT ·vforkScript(SB),NOSPLIT|NOFRAME,$0-32
	MOVD args+0(FP), R0
	MOVD $cloneArgs__size, R1
	MOVD first+8(FP), R19
	MOVD fail+16(FP), R20
	MOVD $435, R8 // clone3
	SVC
	CBZ R0, run
	MOVD R0, ret+24(FP)
	RET
run:
	MOVD Step_nr(R19), R8
	MOVD (Step_args+0)(R19), R0
	MOVD (Step_args+8)(R19), R1
	MOVD (Step_args+16)(R19), R2
	MOVD (Step_args+24)(R19), R3
	MOVD (Step_args+32)(R19), R4
	MOVD (Step_args+40)(R19), R5
	SVC
	// A clone's child comes here with 0 and goes on with its own script.
	CBNZ R0, parent
	MOVD Step_child(R19), R21
	CBZ R21, parent
	MOVD R21, R19
	B run
parent:
	MOVD R0, Step_result(R19)
	CMN $4095, R0
	BCS failed
	MOVD Step_saveA(R19), R21
	CBZ R21, next
	MOVD R0, (R21)
	MOVD Step_saveB(R19), R21
	CBZ R21, next
	MOVD R0, (R21)
next:
	MOVD Step_next(R19), R19
	CBNZ R19, run
	MOVD $0, R0
	B exit
failed:
	MOVD Step_onErr(R19), R21
	CBNZ R21, jump
	MOVD Step_ignore(R19), R21
	CBNZ R21, next
	// The first failure is the cause; an outer script that goes on must not overwrite it.
	MOVD 8(R20), R21
	CBNZ R21, die
	MOVD R19, 0(R20)
	MOVD R0, 8(R20)
die:
	MOVD $127, R0
	B exit
jump:
	MOVD R21, R19
	B run
exit:
	MOVD $94, R8 // exit_group
	SVC
	BRK
