// Package deploy holds what runs the service somewhere: monitoring (prometheus, grafana), and the script that makes the secrets of the
// repository's docker-compose.yml. It has no code. Its tests hold these files to the service: that each metric on the dashboard and in an
// alert is one that the service has, with those labels, that each setting in them exists, that the image's build gets every package that
// the program is made of. tools/check-deploy has the checks that need other programs.
package deploy
