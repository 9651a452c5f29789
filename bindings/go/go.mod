module orrery.invalid/orrery

go 1.19
