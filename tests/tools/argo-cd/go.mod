module github.com/nstance-kit/nstance/tests/tools/argo-cd

go 1.26.6

require github.com/argoproj/argo-cd/v3 v3.1.0
