module orrery

go 1.19
